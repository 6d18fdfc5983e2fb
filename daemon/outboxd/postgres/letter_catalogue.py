"""Letters in their home: written once, found, moved; carried home from other sinks (`outboxd.letter` and its kin)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from outboxd.errors import ConfigurationError, LeaseLost, LetterUnknown, StatementFailed
from outboxd.ports import LeaseToken, LetterFilter, LetterPage, LetterView
from outboxd.postgres.connector import Connector, Session
from outboxd.postgres.letter_rows import COLUMNS, columns_of, text_for_postgres, view_of
from outboxd.postgres.sql import filled, query
from outboxd.records import Letter, LetterStatus, Refused, Stored

__all__ = ["LetterCatalogue"]


class LetterCatalogue:
    """The part of the ports `LetterStore` and `DrainStore` that writes, finds and moves letters."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def store(self, letters: Sequence[Letter], *, sink: str) -> Sequence[Stored | Refused]:
        """See `LetterStore.store`. A letter that is known already is stored: the offset may pass (invariants 6, 8)."""
        if not letters:
            return []
        stored = Stored(detail=f"postgres `{self._connector.name}`")
        try:
            await self._connector.fetch(query("letter_store"), sink, *columns_of(letters))
        except StatementFailed as error:
            if len(letters) == 1:
                return [Refused(reason=str(error))]
        else:
            return [stored] * len(letters)
        # One of them is at fault; the others must not suffer for it.
        return [(await self.store([letter], sink=sink))[0] for letter in letters]

    async def get(self, letter_id: UUID) -> LetterView:
        """See `LetterStore.get`."""
        row = await self._connector.fetch_row(filled("letter_get", {"columns": COLUMNS}), letter_id)
        if row is None:
            raise LetterUnknown(f"there is no letter {letter_id}")
        return view_of(row)

    async def find(self, wanted: LetterFilter, *, limit: int, cursor: str | None = None) -> LetterPage:
        """See `LetterStore.find`. An error class is looked for as the outer and as the root one.

        Raises ConfigurationError for a cursor that no page gave.
        """
        last_at, last_id = (None, None) if cursor is None else _position(cursor)
        rows = await self._connector.fetch(
            filled("letter_find", {"columns": COLUMNS}),
            _as_kept(wanted.pipeline),
            _as_kept(wanted.topic),
            None if wanted.status is None else wanted.status.value,
            _as_kept(wanted.error_class),
            _as_kept(wanted.fingerprint),
            wanted.key,
            wanted.since,
            wanted.until,
            last_at,
            last_id,
            limit + 1,
        )
        items = [view_of(row) for row in rows[:limit]]
        return LetterPage(items=items, next=_cursor(items[-1]) if len(rows) > limit and items else None)

    async def move(self, letter_ids: Sequence[UUID], to: LetterStatus, *, actor: str, reason: str | None) -> int:
        """See `LetterStore.move`: all or none. By hand letters are discarded, archived, or restored from there."""
        row = await self._connector.fetch_row(
            query("letter_move"),
            list(letter_ids),
            to.value,
            text_for_postgres(actor),
            _as_kept(reason),
        )
        return 0 if row is None else int(row["moved"])

    async def drain(self, letters: Sequence[Letter], *, sink: str, lease: LeaseToken, position: str) -> int:
        """See `DrainStore.drain` (invariant 8). Raises StatementFailed, too, when the home refuses one of the letters."""

        async def work(session: Session) -> int:
            held = await session.fetch(query("drain_note"), lease.name, lease.owner, lease.epoch, position)
            if not held:
                raise LeaseLost(f"lease {lease.name} is not {lease.owner}'s under epoch {lease.epoch} any more")
            if not letters:
                return 0
            return len(await session.fetch(query("letter_store"), sink, *columns_of(letters)))

        return await self._connector.in_transaction(work)


def _as_kept(text: str | None) -> str | None:
    """Text as letters have it: what is looked for was changed, too, when it was written."""
    return None if text is None else text_for_postgres(text)


def _cursor(last: LetterView) -> str:
    return base64.urlsafe_b64encode(f"{last.created_at.isoformat()} {last.letter.id}".encode()).decode("ascii")


def _position(cursor: str) -> tuple[datetime, UUID]:
    try:
        at, _, letter_id = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("ascii").partition(" ")
        return datetime.fromisoformat(at), UUID(letter_id)
    except (ValueError, binascii.Error) as error:
        raise ConfigurationError(
            "the cursor was not given by a page of letters", suggestion="Begin without a cursor."
        ) from error

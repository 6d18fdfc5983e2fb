"""An in-memory outbox table: identities drawn before commit, one snapshot per fetch, marks under a lease."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from uuid import UUID

from outboxd.errors import LeaseLost, StatementFailed
from outboxd.ports import Clock, FetchedRows, LeaseToken, Mark, RelayRegistration, SentRow, Statement
from outboxd.records import NO_HEADERS, Headers, OutboxRow, SentPosition
from outboxd.testing.fakes.faults import Faults

__all__ = ["FakeOutbox"]

_RELAY_ID = UUID("11111111-2222-4333-8444-555555555555")
_OVERHEAD = 64  # bytes that a row counts beside what is in it


class FakeOutbox:
    """The outbox port. ``holds`` is the lease store's word on a token; ``faults`` may befall each call.

    ``refuses`` says which statements fail; ``statements`` are those that were committed, ``marked`` the row ids in
    the order of their marks, ``staged`` what `stage` stored.
    """

    def __init__(
        self,
        holds: Callable[[LeaseToken], bool],
        clock: Clock,
        faults: Faults | None = None,
        *,
        shards: int = 2,
        relay_id: UUID = _RELAY_ID,
    ) -> None:
        self.faults = Faults() if faults is None else faults
        self.registration = RelayRegistration(relay_id=relay_id, shards=shards)
        self.refuses: Callable[[Statement], bool] = lambda _: False
        self.statements: list[Statement] = []
        self.marked: list[int] = []
        self.staged: dict[int, SentPosition] = {}
        self.on_mark: Callable[[int], None] = lambda _: None
        self._holds = holds
        self._clock = clock
        self._rows: dict[int, OutboxRow] = {}
        self._born: dict[int, float] = {}
        self._staged_as: dict[int, tuple[str, bytes | None, bytes | None]] = {}
        self._last_id = 0

    # -- the writers' side

    def draw(self) -> int:
        """An identity, as a transaction that is still open has one."""
        self._last_id += 1
        self._born[self._last_id] = self._clock.monotonic()
        return self._last_id

    def commit(  # noqa: PLR0917  # the columns of the table, in their order
        self,
        row_id: int,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = NO_HEADERS,
        timestamp: int | None = None,
    ) -> OutboxRow:
        """Commit the row of a drawn identity: from now on snapshots show it."""
        row = OutboxRow(
            row_id=row_id,
            shard=self.shard_of(row_id, key),
            topic=topic,
            key=key,
            value=value,
            headers=headers,
            timestamp=timestamp,
        )
        self._rows[row_id] = row
        self._born.setdefault(row_id, self._clock.monotonic())
        return row

    def insert(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers = NO_HEADERS,
        timestamp: int | None = None,
    ) -> int:
        """Draw and commit in one go; the row's id."""
        return self.commit(self.draw(), topic, key, value, headers, timestamp).row_id

    def remove(self, row_id: int) -> None:
        """Delete a row by hand, as an operator might; its stage stays, as nobody knows of it."""
        del self._rows[row_id]

    def edit(self, row_id: int, change: Callable[[OutboxRow], OutboxRow]) -> None:
        """Change a row by hand. What was staged was another row."""
        self._rows[row_id] = change(self._rows[row_id])

    def shard_of(self, row_id: int, key: bytes | None) -> int:
        """Which shard a row belongs to."""
        return zlib.crc32(str(row_id).encode() if key is None else key) & (self.registration.shards - 1)

    @property
    def unmarked(self) -> list[int]:
        """The ids of committed rows that are still pending."""
        return sorted(self._rows)

    # -- the relay's side

    async def register(self, shards: int) -> RelayRegistration:  # noqa: ARG002  # the table's own number wins
        """What this table was made with."""
        return await self.faults.around("register", lambda: self.registration)

    async def fetch(
        self,
        *,
        shards: Collection[int],
        exclude: Collection[int],
        max_rows: int,
        max_bytes: int,
        skip_topics: Collection[str] = (),
        skip_keys: Collection[tuple[str, bytes]] = (),
    ) -> FetchedRows:
        """Pending rows, lowest first, of one snapshot."""
        wanted, excluded, topics, keys = set(shards), set(exclude), set(skip_topics), set(skip_keys)

        def effect() -> FetchedRows:
            rows: list[OutboxRow] = []
            size = 0
            for row_id in sorted(self._rows):
                row = self._rows[row_id]
                if row.shard not in wanted or row_id in excluded or row.topic in topics:
                    continue
                if row.key is not None and (row.topic, row.key) in keys:
                    continue
                rows.append(self._shown(row))
                size += _size(row)
                if len(rows) >= max_rows or size >= max_bytes:
                    # It has not looked whether there is more.
                    return FetchedRows(rows=rows, is_complete=False)
            return FetchedRows(rows=rows, is_complete=True)

        return await self.faults.around("fetch", effect)

    async def pending(self, row_ids: Collection[int]) -> Sequence[OutboxRow]:
        """Those that are pending, in row order."""

        def effect() -> Sequence[OutboxRow]:
            return [self._shown(self._rows[row_id]) for row_id in sorted(set(row_ids)) if row_id in self._rows]

        return await self.faults.around("pending", effect)

    async def mark(self, marks: Sequence[Mark]) -> frozenset[str]:
        """Delete rows and run statements, all or nothing; the leases that do not hold."""
        has_statements = any(mark.statements for mark in marks)

        def effect() -> frozenset[str]:
            held = [mark for mark in marks if self._holds(mark.lease)]
            lost = {mark.lease.name for mark in marks if mark not in held}
            if has_statements:
                self._try([mark for mark in marks if mark.statements])
                held = [mark for mark in held if mark.lease.name not in lost]
                if any(row_id not in self._rows for mark in held for row_id in mark.row_ids):
                    raise StatementFailed("a row is not pending any more", sqlstate=None)
            for mark in held:
                self.statements.extend(mark.statements)
                self._done(mark.row_ids)
            return frozenset(lost)

        return await self.faults.around("mark_statements" if has_statements else "mark", effect)

    async def stage(self, lease: LeaseToken, rows: Sequence[SentRow]) -> None:
        """Store answers under the lease, for what the rows are now."""

        def effect() -> None:
            if not self._holds(lease):
                raise LeaseLost(f"the lease {lease.name} is lost")
            for sent in rows:
                if (row := self._rows.get(sent.row_id)) is not None:
                    self.staged[sent.row_id] = sent.sent
                    self._staged_as[sent.row_id] = _identity(row)

        await self.faults.around("stage", effect)

    async def oldest_pending(self) -> float | None:
        """Age of the pending row with the lowest id, since it was written."""

        def effect() -> float | None:
            if not self._rows:
                return None
            return max(0.0, self._clock.monotonic() - self._born[min(self._rows)])

        return await self.faults.around("oldest_pending", effect)

    def _try(self, marks: Sequence[Mark]) -> None:
        """Statements run before anybody looks at the lease, and are undone when it is lost."""
        if any(self.refuses(statement) for mark in marks for statement in mark.statements):
            raise StatementFailed("the statement was refused", sqlstate="23514")

    def _done(self, row_ids: Sequence[int]) -> None:
        for row_id in row_ids:
            if self._rows.pop(row_id, None) is not None:
                self.on_mark(row_id)
                self.marked.append(row_id)
            self.staged.pop(row_id, None)
            self._staged_as.pop(row_id, None)

    def _shown(self, row: OutboxRow) -> OutboxRow:
        staged = self.staged.get(row.row_id)
        is_it = staged is not None and self._staged_as.get(row.row_id) == _identity(row)
        return replace(row, sent=staged) if is_it else row


def _identity(row: OutboxRow) -> tuple[str, bytes | None, bytes | None]:
    return row.topic, row.key, row.value


def _size(row: OutboxRow) -> int:
    headers = sum(len(name) + len(value or b"") for name, value in row.headers)
    return len(row.key or b"") + len(row.value or b"") + headers + _OVERHEAD

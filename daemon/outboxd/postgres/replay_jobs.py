"""Replay jobs in Postgres: a frozen set of letters, one claim per letter at a time (`outboxd.replay_job`, `replay_item`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from outboxd.errors import LetterUnknown, MoveRefused, StatementFailed
from outboxd.ports import ReplayItem, ReplayJob
from outboxd.postgres.connector import Connector, Row, Session
from outboxd.postgres.letter_rows import COLUMNS, letter_of, text_for_postgres
from outboxd.postgres.sql import filled, query
from outboxd.records import LetterStatus, Stage, TopicPartition

__all__ = ["ReplayJobs"]

_SILENCE: Final = timedelta(seconds=60)
_GROUP: Final = "replay"  # of `outboxd.member`; the function claim_replay_items looks there
_UNIQUE_VIOLATION: Final = "23505"
_ERROR_BYTES: Final = 8 * 1024


class ReplayJobs:
    """The part of the port `LetterStore` that replays. No call holds a row lock when it returns (invariant 10)."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def create_replay(self, letter_ids: Sequence[UUID], *, actor: str) -> ReplayJob:
        """See `LetterStore.create_replay`. A letter is in one open job at most: the second one is refused, named."""
        wanted = list(dict.fromkeys(letter_ids))
        if not wanted:
            raise LetterUnknown("no letters to replay", suggestion="Name at least one letter.")
        job_id = uuid4()

        async def work(session: Session) -> None:
            found = await session.fetch(query("replay_candidates"), wanted)
            _check(wanted, found)
            await session.fetch(query("replay_job_create"), job_id, text_for_postgres(actor), "in_place", wanted)

        try:
            await self._connector.in_transaction(work)
        except StatementFailed as error:
            if error.sqlstate == _UNIQUE_VIOLATION:  # another job took one of them in the same moment
                raise MoveRefused("a letter of the set is in another open replay job now") from error
            raise
        return await self.replay(job_id)

    async def replay(self, job_id: UUID) -> ReplayJob:
        """See `LetterStore.replay`. The counts are of the items as they stand, so they cannot drift."""
        row = await self._connector.fetch_row(query("replay_job"), job_id)
        if row is None:
            raise LetterUnknown(f"there is no replay job {job_id}")
        state, reason = _state(row)
        return ReplayJob(
            id=row["id"],
            state=state,
            mode=row["mode"],
            total=row["total"],
            sent=row["claimed"] + row["resolved"] + row["failed"],
            resolved=row["resolved"],
            failed=row["failed"],
            created_at=row["created_at"],
            actor=row["actor"],
            reason=reason,
            letters=row["letters"],
        )

    async def claim(
        self, *, pipeline: str, group: str, partitions: Collection[TopicPartition], owner: str, limit: int
    ) -> Sequence[ReplayItem]:
        """See `LetterStore.claim`. Counts as a heartbeat. A relay's letters have group "" and partition -1."""
        if not partitions or limit <= 0:
            return []
        await self.heartbeat(owner)
        rows = await self._connector.fetch(
            filled("replay_claim", {"columns": COLUMNS}),
            pipeline,
            group,
            [partition.topic for partition in partitions],
            [partition.partition for partition in partitions],
            owner,
            limit,
        )
        return [ReplayItem(job_id=row["job_id"], letter=letter_of(row), attempt=row["attempt"]) for row in rows]

    async def heartbeat(self, owner: str) -> None:
        """See `LetterStore.heartbeat`."""
        await self._connector.fetch(query("member_join"), _GROUP, owner, _SILENCE.total_seconds())

    async def finish(self, item: ReplayItem, *, resolved: bool, error: str | None) -> None:
        """See `LetterStore.finish`. A claim that was given back meanwhile decides nothing: the letter runs again."""
        row = await self._connector.fetch_row(
            query("replay_finish"),
            item.job_id,
            item.letter.id,
            item.attempt,
            resolved,
            None if error is None else text_for_postgres(error, _ERROR_BYTES),
        )
        if row is None or not row["is_ours"]:
            raise MoveRefused(f"letter {item.letter.id} is not claimed under attempt {item.attempt} any more")

    async def give_back(self, item: ReplayItem) -> None:
        """See `LetterStore.give_back`."""
        await self._connector.fetch(query("replay_give_back"), item.job_id, item.letter.id, item.attempt)


def _check(wanted: Sequence[UUID], found: Sequence[Row]) -> None:
    """Raise LetterUnknown or MoveRefused for the first letter that cannot be replayed now."""
    known = {row["id"]: row for row in found}
    for letter_id in wanted:
        row = known.get(letter_id)
        if row is None:
            raise LetterUnknown(f"there is no letter {letter_id}")
        if row["open_job"] is not None:
            raise MoveRefused(f"letter {letter_id} is in replay job {row['open_job']} already")
        if row["stage"] == Stage.FETCH:
            raise MoveRefused(f"letter {letter_id} cannot be replayed: the record could not be read from the broker")
        if row["status"] not in (LetterStatus.NEW, LetterStatus.FAILED):
            raise MoveRefused(f"letter {letter_id} is {row['status']}: only NEW and FAILED letters are replayed")


def _state(row: Row) -> tuple[str, str | None]:
    if row["is_cancelled"]:
        return "CANCELLED", None
    if row["claimed"]:
        return "RUNNING", None
    if not row["waiting"]:
        return "DONE", f"{row['skipped']} letters were closed before their turn" if row["skipped"] else None
    if row["waiting"] < row["total"]:
        return "RUNNING", None
    return "WAITING", "no replica of the pipeline that owns the letters' partitions has taken them yet"

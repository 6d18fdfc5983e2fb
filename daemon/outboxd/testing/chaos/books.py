"""The tables that a run keeps beside the outbox, in its own transactions: what was written, what was handled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Final, Self
from uuid import UUID

from outboxd.postgres.connector import Connector
from outboxd.records import Position

__all__ = ["Books", "HandledRow", "LetterRow", "WrittenRow"]

_TABLES: Final = """
create schema if not exists outboxd_chaos;
create table if not exists outboxd_chaos.account (key text primary key);
create table if not exists outboxd_chaos.written (
    id bigint primary key, topic text not null, key text not null, payload text not null
);
create table if not exists outboxd_chaos.handled (
    seq bigint generated always as identity,
    topic text not null, partition integer not null, "offset" bigint not null, key text
);
create index if not exists handled_position on outboxd_chaos.handled (topic, partition, "offset");
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRow:
    """An outbox row as its writer knows it."""

    row_id: int
    topic: str
    key: str
    payload: str

    def __str__(self) -> str:
        return f"row {self.row_id} ({self.topic}, {self.key})"


@dataclass(frozen=True, slots=True, kw_only=True)
class HandledRow:
    """One successful run of a handler; ``seq`` grows in the order of the runs."""

    seq: int
    position: Position


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRow:
    """A letter in the table `outboxd.letter`, with where its record stood."""

    id: UUID
    position: Position
    error_class: str


class Books:
    """Reads, and makes, a database's `outboxd_chaos` tables; reads outbox and letters beside them.

    `outboxd_chaos.written` gets a row in the same transaction as the outbox row that it describes, so that the
    database itself says which rows were committed, whatever became of the answer. A handler that is to be checked
    inserts into `outboxd_chaos.handled` (topic, partition, offset, key) in its own transaction, last.

    Every call raises DatabaseError while the database is away.
    """

    def __init__(self, dsn: str) -> None:
        self._connector = Connector(
            name="chaos", dsn=dsn, statement_timeout=timedelta(seconds=60), connect_timeout=timedelta(seconds=5)
        )

    async def __aenter__(self) -> Self:
        await self._connector.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._connector.close()

    async def create(self) -> None:
        """Make the tables where they are missing."""
        for statement in _TABLES.split(";"):
            if statement.strip():
                await self._connector.execute(statement)

    async def written(self) -> Mapping[int, WrittenRow]:
        """Every committed outbox row that a writer wrote, by its id."""
        rows = await self._connector.fetch("select id, topic, key, payload from outboxd_chaos.written order by id")
        return {
            row["id"]: WrittenRow(row_id=row["id"], topic=row["topic"], key=row["key"], payload=row["payload"])
            for row in rows
        }

    async def pending(self, table: str = "outboxd.outbox", where: str = "true") -> Sequence[int]:
        """The ids of the rows that are still in the outbox (and match ``where``, for one that keeps marked rows)."""
        rows = await self._connector.fetch(f"select id from {table} where {where} order by id")  # noqa: S608 -- a tester's own
        return [row["id"] for row in rows]

    async def handled(self, topic: str) -> Sequence[HandledRow]:
        """Every run that a handler wrote down, in order."""
        rows = await self._connector.fetch(
            'select seq, partition, "offset" from outboxd_chaos.handled where topic = $1 order by seq', topic
        )
        return [HandledRow(seq=row["seq"], position=Position(topic, row["partition"], row["offset"])) for row in rows]

    async def handled_between(self, topic: str, partition: int, start: int, end: int) -> frozenset[int]:
        """The offsets from ``start`` up to ``end`` (exclusive) of a partition that were handled at least once."""
        rows = await self._connector.fetch(
            'select distinct "offset" from outboxd_chaos.handled'
            ' where topic = $1 and partition = $2 and "offset" >= $3 and "offset" < $4',
            topic,
            partition,
            start,
            end,
        )
        return frozenset(row["offset"] for row in rows)

    async def letters(self, topic: str) -> Sequence[LetterRow]:
        """Every letter of the topic's records in its home."""
        rows = await self._connector.fetch(
            'select id, partition, "offset", error_class from outboxd.letter where topic = $1'
            ' order by partition, "offset", id',
            topic,
        )
        return [
            LetterRow(
                id=row["id"],
                position=Position(topic, row["partition"], row["offset"]),
                error_class=row["error_class"],
            )
            for row in rows
        ]

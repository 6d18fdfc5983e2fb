"""The outbox: one relay's table, read and marked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from outboxd.ports.leases import LeaseToken
from outboxd.records import OutboxRow, SentPosition

__all__ = ["FetchedRows", "Mark", "OutboxStore", "RelayRegistration", "SentRow", "Statement"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRegistration:
    """What the database says of a relay; ``shards`` wins over the YAML."""

    relay_id: UUID
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedRows:
    """Rows in row order; ``is_complete`` when nothing else was pending for these shards in that snapshot."""

    rows: Sequence[OutboxRow]
    is_complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SentRow:
    """A row with the broker's answer."""

    row_id: int
    sent: SentPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """SQL with `$1`-style parameters, run in the transaction of the mark."""

    sql: str
    arguments: Sequence[object] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Rows of one shard that are done, under its lease, with what else belongs into the same transaction."""

    lease: LeaseToken
    row_ids: Sequence[int]
    statements: Sequence[Statement] = ()


class OutboxStore(Protocol):
    """One relay's outbox table.

    No transaction and no row lock outlives a call (invariant 10).
    """

    async def register(self, shards: int) -> RelayRegistration:
        """The relay's id and number of shards; made at the first start. Raises SchemaBehind, StatementFailed."""
        ...

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
        """Pending rows of these shards in row order, from the lowest on, less the row ids in ``exclude``.

        Rows of ``skip_topics`` and of the (topic, key) pairs in ``skip_keys`` stay where they are, however many: a
        paused topic or a blocked key costs no memory. Both are empty on most calls.

        Selects by "pending", never by an id above the last seen: ids commit out of order (invariant 2). One snapshot
        per call, so a row is never given without every earlier visible row of its key being given or excluded.
        At least one row is given when there is one, however large.
        """
        ...

    async def pending(self, row_ids: Collection[int]) -> Sequence[OutboxRow]:
        """The rows among these that are still pending, whole, in row order: what a recovery compares with the log."""
        ...

    async def mark(self, marks: Sequence[Mark]) -> frozenset[str]:
        """Mark (or delete) the rows, each group only while its lease has its owner and epoch, in the same statement.

        Gives the names of leases that were lost: nothing of theirs was marked. Without statements one set-based write;
        with statements all of it commits in one transaction, or StatementFailed is raised and nothing is done; so it
        is, too, when one of their rows is not pending any more: its statement has been run already.
        Also drops the stage of rows that had one.
        """
        ...

    async def stage(self, lease: LeaseToken, rows: Sequence[SentRow]) -> None:
        """Store the broker's answers before any action runs, or the index of the next action. Raises LeaseLost."""
        ...

    async def oldest_pending(self) -> float | None:
        """Age in seconds, by the database clock, of the oldest pending row; None when nothing is pending."""
        ...

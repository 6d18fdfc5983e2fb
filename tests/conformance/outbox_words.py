"""Shorter words for what the stories about the outbox do again and again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from outboxd.ports import FetchedRows, LeaseToken, Mark, OutboxStore, SentRow, Statement
from outboxd.records import SentPosition
from tests.conformance.store_world import SHARDS, StoreWorld

__all__ = ["MIB", "fetched", "ids", "mark", "pending", "put", "sent", "stages"]

MIB = 1 << 20


async def fetched(
    store: OutboxStore,
    *,
    exclude: Collection[int] = (),
    rows: int = 100,
    size: int = MIB,
    shards: Collection[int] = range(SHARDS),
) -> FetchedRows:
    return await store.fetch(shards=shards, exclude=exclude, max_rows=rows, max_bytes=size)


def ids(found: FetchedRows) -> list[int]:
    return [row.row_id for row in found.rows]


async def pending(world: StoreWorld) -> list[int]:
    return ids(await fetched(world.other.outbox))


async def put(world: StoreWorld, count: int = 1) -> list[int]:
    return [await world.insert("t", b"k%d" % number, b"v%d" % number) for number in range(count)]


async def mark(
    store: OutboxStore, lease: LeaseToken, row_ids: Sequence[int], statements: Sequence[Statement] = ()
) -> frozenset[str]:
    return await store.mark([Mark(lease=lease, row_ids=row_ids, statements=statements)])


def sent(row_id: int, offset: int = 42, next_action: int = 0) -> SentRow:
    return SentRow(row_id=row_id, sent=SentPosition(topic="t", partition=3, offset=offset, next_action=next_action))


async def stages(store: OutboxStore) -> dict[int, SentPosition]:
    return {row.row_id: row.sent for row in (await fetched(store)).rows if row.sent is not None}

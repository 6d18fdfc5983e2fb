"""Fence, verify, read, then send: how a shard whose past is uncertain comes to know what the log holds.

After the fence nothing that an older producer of this shard had on its way can reach the log; after the lease is
verified nobody else sends for it; so what is read now is final (invariants 2 and 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from outboxd.errors import BrokerUnreachable
from outboxd.ids import HEADER_ROW_ID, content_hash, parse_row_identity, transactional_id
from outboxd.pipeline.relay.dependencies import database_call
from outboxd.ports import RelayProducer, SentRow
from outboxd.records import OutboxRow, RawRecord, SentPosition, TopicPartition
from outboxd.telemetry.relay import ShardRecovered

if TYPE_CHECKING:
    from outboxd.pipeline.relay.shard import Shard

__all__ = ["abandon", "recover"]

_DEADLINE: Final = 60.0
_READ_AT_ONCE: Final = 200
_READ_RECORDS: Final = 50_000
_READ_SECONDS: Final = 30.0
_COMPARED_BYTES: Final = 8 << 20


async def recover(shard: Shard) -> tuple[RelayProducer, frozenset[TopicPartition]]:
    """A producer with an epoch of its own, and the partitions that the coordinator refused to fence.

    When the shard's past is uncertain, rows that the log holds are handed to the shard as delivered before this
    returns. Raises BrokerError, LeaseLost, DatabaseError; then the new producer is given up, and the notes stay.
    """
    context = shard.context
    producer = context.brokers.relay_producer(
        transactional_id(context.relay_id, shard.number),
        compression=context.compression,
        deadline=context.send_deadline,
    )
    fence = sorted(shard.trails.partitions) if shard.is_uncertain else []
    try:
        async with asyncio.timeout(_DEADLINE):
            with context.broker.watched():
                refused = await producer.open(fence)
        await database_call(context.leases.verify(shard.token), _DEADLINE)
        found = unread = 0
        if shard.is_uncertain:
            found, unread = await _Tail(shard, producer).read(set(fence) - refused)
    except TimeoutError as error:
        await abandon(producer)
        raise BrokerUnreachable("the broker did not answer while the shard was opened") from error
    except BaseException:
        await abandon(producer)
        raise
    context.broker.answered()
    context.emit(
        ShardRecovered(
            pipeline=context.pipeline,
            shard=shard.number,
            was_uncertain=shard.is_uncertain,
            fenced=len(fence) - len(refused),
            found=found,
            unread=unread,
        )
    )
    return producer, refused


async def abandon(producer: RelayProducer) -> None:
    """Give a producer up; it leaves nothing behind and nothing is waited for long."""
    try:
        async with asyncio.timeout(_DEADLINE / 10):
            await producer.abandon()
    except TimeoutError:
        return


class _Tail:
    """Reads the noted partitions to their ends, within bounds, and finds the rows that are there already."""

    def __init__(self, shard: Shard, producer: RelayProducer) -> None:
        self._shard = shard
        self._context = shard.context
        self._producer = producer
        self._records_left = _READ_RECORDS
        self._until = 0.0

    async def read(self, partitions: set[TopicPartition]) -> tuple[int, int]:
        """How many rows were found, and how many records past the bounds were left unread."""
        shard = self._shard
        # Rows that were acknowledged before the failure come first: their answers are stored, their keys' queues
        # know them. Only then may later rows of their keys be found.
        await shard.holding.actions.all_staged()
        self._until = self._context.clock.monotonic() + _READ_SECONDS
        found_rows = unread = 0
        for partition, noted in shard.trails.offsets().items():
            if partition not in partitions:
                continue
            async with asyncio.timeout(_DEADLINE):
                end = await self._producer.end_offset(partition)
            # A note behind the end: the log was made anew, or cut. What was sent since then stands near its end.
            start = noted if noted <= end else max(0, end - _READ_RECORDS)
            found, left = await self._read_partition(partition, start, end)
            if self._context.plans.steps(partition.topic):
                await self._stage(found)
                found_rows += len(found)
                found = ()
            shard.holding.found(partition, start, end, found)
            found_rows += len(found)
            unread += left
        self._context.books.possible_duplicates += unread
        return found_rows, unread

    async def _stage(self, rows: Sequence[OutboxRow]) -> None:
        """Store where the rows stand; the reader then brings them with that.

        Not straight to their actions: an earlier row of a key may have its stage from before, and not be in this tail.
        """
        staged = [SentRow(row_id=row.row_id, sent=row.sent) for row in rows if row.sent is not None]
        if staged:
            await database_call(self._context.outbox.stage(self._shard.token, staged), _DEADLINE)

    async def _read_partition(self, partition: TopicPartition, start: int, end: int) -> tuple[Sequence[OutboxRow], int]:
        found: dict[int, OutboxRow] = {}
        offset = start
        while offset < end:
            if self._records_left <= 0 or self._context.clock.monotonic() >= self._until:
                return list(found.values()), end - offset
            async with asyncio.timeout(_DEADLINE):
                records = await self._context.admin.read(partition, offset, _READ_AT_ONCE)
            if not records:
                break  # only markers are left
            self._records_left -= len(records)
            offset = records[-1].offset + 1
            for row in await self._pending(self._ours(records, end, found)):
                found[row.row_id] = row
        return list(found.values()), 0

    def _ours(self, records: Sequence[RawRecord], end: int, found: Mapping[int, OutboxRow]) -> dict[int, RawRecord]:
        """Records of rows of this relay whose outcome nobody here knows, each row's first."""
        ours: dict[int, RawRecord] = {}
        for record in records:
            identity = parse_row_identity(record.headers.get(HEADER_ROW_ID))
            if identity is None or identity[0] != self._context.relay_id or record.offset >= end:
                continue
            row_id = identity[1]
            if row_id not in self._shard.holding.in_flight and row_id not in found:
                ours.setdefault(row_id, record)
        return ours

    async def _pending(self, ours: dict[int, RawRecord]) -> list[OutboxRow]:
        """The pending rows that these records are. An id alone proves nothing: ids come again after a restore."""
        matched: list[OutboxRow] = []
        chunk: list[int] = []
        size = 0
        for row_id, record in ours.items():
            chunk.append(row_id)
            size += len(record.key or b"") + len(record.value or b"")
            if size >= _COMPARED_BYTES:
                matched.extend(await self._compare(chunk, ours))
                chunk, size = [], 0
        if chunk:
            matched.extend(await self._compare(chunk, ours))
        matched.sort(key=lambda row: ours[row.row_id].offset)
        return matched

    async def _compare(self, row_ids: Sequence[int], ours: Mapping[int, RawRecord]) -> list[OutboxRow]:
        matched = []
        for row in await database_call(self._context.outbox.pending(row_ids), _DEADLINE):
            record = ours[row.row_id]
            if (
                row.sent is None
                and row.shard == self._shard.number
                and row.topic == record.topic
                and content_hash(row.key, row.value) == content_hash(record.key, record.value)
            ):
                sent = SentPosition(topic=record.topic, partition=record.partition, offset=record.offset)
                matched.append(replace(row, sent=sent))
        return matched

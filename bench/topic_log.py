"""What a topic's log holds after a drain: every row once, in order within its key, and when the broker wrote it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import TopicPartition

from bench.payload import number

__all__ = ["APPEND_TIME", "DrainLog", "committed", "end_offsets", "log_reader", "read_drain"]

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
"""Topic settings: the broker stamps each batch with the time of its append."""

_IDLE_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLog:
    """One drain as the log tells it. ``rate`` is of the rows after the first append, a second."""

    seconds: float
    rate: float
    missing: int
    extra: int
    out_of_order: int


@asynccontextmanager
async def log_reader(bootstrap_servers: str, topic: str) -> AsyncIterator[Any]:
    """A consumer without a group on all partitions of a topic, from its beginning."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap_servers, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        # The metadata of a topic that it does not read yet is fetched by asking for its partitions.
        await consumer._client.force_metadata_update()  # noqa: SLF001
        consumer.assign([TopicPartition(topic, n) for n in sorted(consumer.partitions_for_topic(topic) or ())])
        yield consumer
    finally:
        await consumer.stop()


async def end_offsets(consumer: Any) -> dict[Any, int]:
    """The offset after the last record of each assigned partition."""
    ends: dict[Any, int] = await consumer.end_offsets(sorted(consumer.assignment()))
    return ends


async def read_drain(bootstrap_servers: str, topic: str, rows: int) -> DrainLog:
    """Read the whole topic, which should hold the rows 0 to ``rows``."""
    seen: Counter[int] = Counter()
    stamps: Counter[int] = Counter()
    last: dict[bytes, int] = {}
    out_of_order = 0
    async with log_reader(bootstrap_servers, topic) as consumer:
        ends = await end_offsets(consumer)
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            fetched = await consumer.getmany(timeout_ms=_IDLE_MS)
            for record in (record for records in fetched.values() for record in records):
                n = number(record.value)
                seen[n] += 1
                stamps[record.timestamp] += 1
                if n <= last.get(record.key, -1):
                    out_of_order += 1
                last[record.key] = n
    return _told(rows, seen, stamps, out_of_order)


def _told(rows: int, seen: Counter[int], stamps: Counter[int], out_of_order: int) -> DrainLog:
    first, final = min(stamps, default=0), max(stamps, default=0)
    seconds = (final - first) / 1000
    missing = rows - sum(1 for n in seen if 0 <= n < rows)
    return DrainLog(
        seconds=seconds,
        rate=round((stamps.total() - stamps[first]) / max(seconds, 0.001)),
        missing=missing,
        extra=seen.total() - (rows - missing),
        out_of_order=out_of_order,
    )


async def committed(admin: AIOKafkaAdminClient, group: str) -> Mapping[Any, int]:
    """The committed offset of each partition that the group has one for."""
    found = await admin.list_consumer_group_offsets(group)
    return {partition: stored.offset for partition, stored in found.items() if stored.offset >= 0}

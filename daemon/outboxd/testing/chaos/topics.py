"""A topic's records: filled in before a run, read afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.producer import KafkaRelayProducer
from outboxd.kafka.settings import KafkaSettings
from outboxd.ports import OutboundRecord
from outboxd.records import NO_HEADERS, RawRecord, TopicPartition

__all__ = ["fill_topic", "read_topic"]

_PAGE: Final = 5_000
_BATCH: Final = 2_000
_SEND_DEADLINE: Final = timedelta(seconds=20)


async def read_topic(
    bootstrap_servers: str, topic: str, *, within: timedelta = timedelta(seconds=60)
) -> list[RawRecord]:
    """Every record of a topic, partition by partition in the order of offsets.

    Raises BrokerError, or TimeoutError after ``within``.
    """
    admin = _broker(bootstrap_servers).admin()
    try:
        async with asyncio.timeout(within.total_seconds()):
            records: list[RawRecord] = []
            for partition, end in sorted((await admin.end_offsets(topic)).items()):
                offset = 0
                while offset < end:
                    page = await admin.read(partition, offset, _PAGE)
                    if not page:
                        break
                    records += page
                    offset = page[-1].offset + 1
            return records
    finally:
        await admin.close()


async def fill_topic(
    bootstrap_servers: str, topic: str, *, partitions: int, records: int, keys_per_partition: int = 37
) -> None:
    """Fill a new topic with ``records`` records, the same number for each partition.

    The value is the record's number in its partition as text, which is its offset; the key is `<partition>-<k>`, each
    partition's keys in turn. A prime number of keys lets every share of the numbers fall on every key.
    """
    producer = _broker(bootstrap_servers).relay_producer(
        "outboxd.chaos.fill", compression=None, deadline=_SEND_DEADLINE
    )
    await producer.open(())
    try:
        for partition in range(partitions):
            batch: list[OutboundRecord] = []
            for number in range(records // partitions):
                key = f"{partition}-{number % keys_per_partition}".encode()
                batch.append(OutboundRecord(key=key, value=str(number).encode(), headers=NO_HEADERS))
            for start in range(0, len(batch), _BATCH):
                await _send(producer, TopicPartition(topic, partition), batch[start : start + _BATCH])
    finally:
        await producer.close()


async def _send(producer: KafkaRelayProducer, partition: TopicPartition, records: Sequence[OutboundRecord]) -> None:
    while records:
        batch = producer.build(records)
        await producer.send(partition, batch)
        records = records[batch.count :]


def _broker(bootstrap_servers: str) -> KafkaBroker:
    return KafkaBroker(KafkaSettings(type="kafka", bootstrap_servers=tuple(bootstrap_servers.split(","))))

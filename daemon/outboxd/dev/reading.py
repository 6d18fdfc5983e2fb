"""Looks into a topic of a development stack."""

from __future__ import annotations

from collections.abc import Sequence

from outboxd.dev.stack import DevStack
from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.settings import KafkaSettings
from outboxd.records import RawRecord

__all__ = ["read_topic"]


async def read_topic(stack: DevStack, topic: str, *, limit: int = 1000) -> Sequence[RawRecord]:
    """Up to ``limit`` records of each partition of the topic, partition by partition. Raises BrokerError."""
    admin = KafkaBroker(KafkaSettings(type="kafka", bootstrap_servers=(stack.bootstrap_servers,))).admin()
    try:
        records: list[RawRecord] = []
        for partition in sorted(await admin.end_offsets(topic)):
            records += await admin.read(partition, 0, limit)
        return records
    finally:
        await admin.close()

"""Bounded reads of a topic for plugins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from outboxd.errors import OffsetOutOfRange
from outboxd.ports import BrokerFactory
from outboxd.records import RawRecord, TimestampType, TopicPartition
from outboxd.runtime.kafka_connection import SharedKafkaConnection


class Logs:
    """A broker's partitions, each with so many records."""

    def __init__(self, **counts: int) -> None:
        self._ends = {TopicPartition("t", int(name[1:])): count for name, count in counts.items()}

    def admin(self) -> Logs:
        return self

    async def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        return self._ends

    async def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        return [
            RawRecord(
                topic="t",
                partition=partition.partition,
                offset=number,
                timestamp=-1,
                timestamp_type=TimestampType.NONE,
                key=None,
                value=None,
            )
            for number in range(offset, min(offset + limit, self._ends[partition]))
        ]


def connection(**counts: int) -> SharedKafkaConnection:
    return SharedKafkaConnection(cast("BrokerFactory", cast("Any", Logs(**counts))))


async def test_a_long_partition_does_not_keep_the_others_waiting() -> None:
    records = await connection(p0=1000, p1=2, p2=1000).read("t", {}, 10)
    assert [sum(record.partition == number for record in records) for number in range(3)] == [4, 2, 4]


async def test_reading_goes_on_where_it_was_told_to() -> None:
    records = await connection(p0=5, p1=5).read("t", {0: 3, 1: 5}, 10)
    assert [(record.partition, record.offset) for record in records] == [(0, 3), (0, 4)]


async def test_an_offset_beyond_the_end_is_told_since_the_topic_is_another_one() -> None:
    with pytest.raises(OffsetOutOfRange, match="ends at 5, before offset 6"):
        await connection(p0=5).read("t", {0: 6}, 10)

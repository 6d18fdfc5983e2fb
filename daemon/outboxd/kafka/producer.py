"""The relay's producer: idempotent, fenced by an epoch of its own, one atomic batch per partition in flight."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, cast

from outboxd.kafka.batch import KafkaBatch
from outboxd.kafka.fencing import Epoch, take_epoch
from outboxd.kafka.idempotent import IdempotentProducer
from outboxd.kafka.partitioner import partition_of
from outboxd.kafka.security import ClientOptions
from outboxd.ports import Batch, OutboundRecord, TopicInfo
from outboxd.records import TopicPartition

__all__ = ["KafkaRelayProducer"]


class KafkaRelayProducer:
    """`outboxd.ports.RelayProducer` on a real broker.

    One object, one epoch: a (producer id, epoch) that starts again at sequence 0 is acknowledged without being written.
    """

    def __init__(
        self, options: ClientOptions, transactional_id: str, *, compression: str | None, deadline: timedelta
    ) -> None:
        self._options = options
        self._transactional_id = transactional_id
        self._producer = IdempotentProducer(options, compression=compression, deadline=deadline)

    async def open(self, fence: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Take the next epoch, fence older producers on ``fence``, start; the partitions that could not be fenced."""
        seconds = (self._options.request_timeout + self._options.answer_deadline).total_seconds()

        async def take(client: Any) -> Epoch:
            return await take_epoch(client, self._transactional_id, fence, seconds=seconds)

        return (await self._producer.open(take)).refused

    async def topic(self, name: str) -> TopicInfo:
        """Look the topic up, remembered for a while."""
        return await self._producer.topic(name)

    def partition_for(self, topic: TopicInfo, key: bytes | None, spread: int) -> int:
        """The key's partition as the Java client computes it; without a key ``spread`` decides."""
        return spread % topic.partitions if key is None else partition_of(key, topic.partitions)

    def build(self, records: Sequence[OutboundRecord]) -> Batch:
        """A batch of as many of the first records as fit."""
        return self._producer.build(records)

    async def send(self, partition: TopicPartition, batch: Batch) -> int:
        """Write the batch atomically; the offset of its first record."""
        return await self._producer.send(partition, cast("KafkaBatch", batch))

    async def end_offset(self, partition: TopicPartition) -> int:
        """The offset after the last record."""
        return await self._producer.end_offset(partition)

    async def close(self) -> None:
        """Flush within a deadline, then give up what is left."""
        await self._producer.close()

    async def abandon(self) -> None:
        """Give up at once."""
        await self._producer.abandon()

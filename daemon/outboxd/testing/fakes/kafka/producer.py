"""The relay's producer: an epoch of its own, older producers fenced, then plain idempotent batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import TypeVar

from outboxd.kafka.partitioner import partition_of
from outboxd.ports import Batch, OutboundRecord, TopicInfo
from outboxd.records import TopicPartition
from outboxd.testing.fakes.kafka.batch import FakeBatch
from outboxd.testing.fakes.kafka.brokers import Brokers
from outboxd.testing.fakes.kafka.connection import ANSWER_DEADLINE, REQUEST_TIMEOUT, Connection
from outboxd.testing.fakes.kafka.idempotent import IdempotentClient

__all__ = ["FakeProducer"]

_T = TypeVar("_T")


class FakeProducer:
    """The relay producer port."""

    def __init__(self, brokers: Brokers, transactional_id: str, deadline: timedelta) -> None:
        self.transactional_id = transactional_id
        self.fenced: frozenset[TopicPartition] = frozenset()
        """What `open` was asked to fence."""
        self.max_batch = 1_000_000
        """The most records that `build` takes, whatever their size."""
        self._connection = Connection(brokers)
        self.client = IdempotentClient(self._connection, deadline=deadline.total_seconds())

    @property
    def epoch(self) -> int:
        """Its epoch, -1 before `open`."""
        return self.client.epoch

    @property
    def is_done(self) -> bool:
        """Whether it was closed or given up."""
        return self.client.is_done

    async def open(self, fence: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Take the next epoch and fence, with an empty transaction over the partitions; those that are refused."""
        assert self.client.epoch == -1, "a producer object is opened once"
        self.fenced = frozenset(fence)
        await self._connection.connect()
        epoch = await self._next_epoch()
        refused: frozenset[TopicPartition] = frozenset()
        wanted = set(fence)
        if wanted:
            refused = await self._add_partitions(epoch, wanted)
            if refused:
                refused |= await self._add_partitions(epoch, wanted - refused)
            if wanted - refused:
                await self._ask(
                    "end_transaction",
                    lambda: self._connection.brokers.transactions.end_transaction(self.transactional_id, epoch),
                )
                epoch = await self._next_epoch()
        self.client.adopt(epoch)
        return refused

    async def _next_epoch(self) -> tuple[int, int]:
        return await self._ask(
            "init_producer_id", lambda: self._connection.brokers.transactions.init_producer_id(self.transactional_id)
        )

    async def _add_partitions(
        self, epoch: tuple[int, int], partitions: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        return await self._ask(
            "add_partitions",
            lambda: self._connection.brokers.add_partitions(self.transactional_id, epoch, partitions),
        )

    async def _ask(self, call: str, effect: Callable[[], _T]) -> _T:
        return await self._connection.ask(call, effect, seconds=REQUEST_TIMEOUT + ANSWER_DEADLINE)

    async def topic(self, name: str) -> TopicInfo:
        """The topic's settings, remembered for a while."""
        return await self.client.topic(name)

    def partition_for(self, topic: TopicInfo, key: bytes | None, spread: int) -> int:
        """The key's partition as the Java client computes it; without a key ``spread`` decides."""
        return spread % topic.partitions if key is None else partition_of(key, topic.partitions)

    def build(self, records: Sequence[OutboundRecord]) -> Batch:
        """A batch of the first records that fit, up to `max_batch`."""
        return self.client.build(records, most=self.max_batch)

    async def send(self, partition: TopicPartition, batch: Batch) -> int:
        """Write the batch; the offset of its first record."""
        assert isinstance(batch, FakeBatch)
        return await self.client.send(partition, batch)

    async def end_offset(self, partition: TopicPartition) -> int:
        """The end of the partition's log."""
        return await self.client.end_offset(partition)

    async def close(self) -> None:
        """Wait for what is on its way, within a deadline."""
        await self.client.close()

    async def abandon(self) -> None:
        """Give up at once; what has left may still arrive."""
        await self.client.abandon()

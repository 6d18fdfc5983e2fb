"""The idempotent client below the relay's producer and the sender: sequences, one batch of a partition at a time, and doubt.

A batch on its way goes on being delivered after its caller's deadline or cancellation, until `abandon`; what has left by
then may still arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from outboxd.errors import OutboxdError, ProducerWedged, SendOutcomeUnknown, TopicUnknown
from outboxd.ports import OutboundRecord, TopicInfo
from outboxd.records import TopicPartition
from outboxd.testing.fakes.kafka.batch import FakeBatch, build_batch
from outboxd.testing.fakes.kafka.connection import CLOSE_DEADLINE, REQUEST_TIMEOUT, Connection, Directory
from outboxd.testing.fakes.kafka.requests import Disconnected, NoBroker

__all__ = ["IdempotentClient"]

_RETRY_PAUSE: Final = 0.1
_PATIENCE: Final = 2.0
"""Seconds after which a batch for a topic that is not there is given up."""


class IdempotentClient:
    """One producer object: opened once, of no use any more after the first doubt. ``deadline`` in seconds."""

    def __init__(self, connection: Connection, *, deadline: float) -> None:
        self._connection = connection
        self._brokers = connection.brokers
        self.deadline = deadline
        self.producer_id = -1
        self.epoch = -1
        self.is_done = False
        self.directory = Directory(connection)
        self._is_broken = False
        self._sequences: dict[TopicPartition, int] = {}
        self._last: dict[TopicPartition, asyncio.Task[None]] = {}
        self._answers: dict[asyncio.Task[None], asyncio.Future[int]] = {}
        self._wedged: set[TopicPartition] = set()

    def adopt(self, epoch: tuple[int, int]) -> None:
        """Take a producer id and epoch, which nobody else should have."""
        self.producer_id, self.epoch = epoch

    def require(self) -> None:
        """Raise ProducerWedged unless it is open."""
        if self.is_done or self.epoch < 0:
            raise ProducerWedged("the producer is not open")

    async def topic(self, name: str) -> TopicInfo:
        """The topic, remembered for a while. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        self.require()
        return await self.directory.get(name)

    def build(self, records: Sequence[OutboundRecord], *, most: int) -> FakeBatch:
        """See `build_batch`."""
        self.require()
        return build_batch(records, now=int(self._brokers.clock.now().timestamp() * 1000), most=most)

    async def send(self, partition: TopicPartition, batch: FakeBatch) -> int:
        """Write the batch, or raise what a producer would; never answers later than its deadline."""
        self.require()
        if partition in self._wedged or self._is_broken:
            raise ProducerWedged(f"an earlier batch for {partition} was refused: the sequence is broken")
        info = await self.topic(partition.topic)
        if not 0 <= partition.partition < info.partitions:
            raise TopicUnknown(f"topic {partition.topic} has no partition {partition.partition}", topic=partition.topic)
        self.require()
        if batch.is_used:
            self._is_broken = True  # what it does to the real client's sender
            raise ProducerWedged("a batch is sent once: the client's sender has ended")
        batch.is_used = True
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        answer.add_done_callback(_retrieve)
        delivery = self._deliver(partition, batch.records, answer, self._last.get(partition))
        task = self._last[partition] = asyncio.create_task(delivery, name=f"kafka: send to {partition}")
        self._answers[task] = answer
        task.add_done_callback(self._delivered)
        await asyncio.wait((answer,), timeout=self.deadline)
        if not answer.done():
            raise SendOutcomeUnknown(f"no acknowledgement from {partition} within {self.deadline:g} s")
        try:
            return answer.result()
        except OutboxdError as error:
            if not isinstance(error, TopicUnknown):
                self._wedged.add(partition)
            raise

    def _delivered(self, task: asyncio.Task[None]) -> None:
        del self._answers[task]

    async def _deliver(
        self,
        partition: TopicPartition,
        records: Sequence[OutboundRecord],
        answer: asyncio.Future[int],
        earlier: asyncio.Task[None] | None,
    ) -> None:
        """Hand the batch to its leader under one sequence, as often as it takes."""
        if earlier is not None and not earlier.done():
            await asyncio.wait((earlier,))
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(records)
        try:
            base = await self._acknowledged(partition, sequence, records)
        except Exception as error:  # noqa: BLE001  # whatever the broker answered is the caller's
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(base)

    async def _acknowledged(self, partition: TopicPartition, sequence: int, records: Sequence[OutboundRecord]) -> int:
        producer_id, epoch = self.producer_id, self.epoch
        loop = asyncio.get_running_loop()
        until = loop.time() + _PATIENCE
        while True:
            count = self._brokers.arrivals.count
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    return await self._connection.once(
                        "send", lambda: self._brokers.append(producer_id, epoch, partition, sequence, records)
                    )
            except NoBroker:
                await self._brokers.arrivals.wait(count)
            except (Disconnected, TimeoutError):
                await asyncio.sleep(_RETRY_PAUSE)
            except TopicUnknown:
                if loop.time() >= until:
                    raise SendOutcomeUnknown(
                        f"topic {partition.topic} went away while {partition} was written"
                    ) from None
                await asyncio.sleep(_RETRY_PAUSE)

    async def end_offset(self, partition: TopicPartition) -> int:
        """The offset after the last record. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        self.require()
        return await self._connection.ask("end_offset", lambda: self._brokers.end(partition))

    async def close(self) -> None:
        """Wait a while for what is on its way, then give up."""
        if self._answers and not self.is_done:
            await asyncio.wait(tuple(self._answers), timeout=CLOSE_DEADLINE)
        await self.abandon()

    async def abandon(self) -> None:
        """Give up at once: pending sends raise SendOutcomeUnknown, nothing queued is sent, no task is left."""
        self.is_done = True
        tasks = dict(self._answers)
        for task, answer in tasks.items():
            if not answer.done():
                answer.set_exception(SendOutcomeUnknown("the producer was given up"))
            task.cancel()
        if tasks:
            await asyncio.wait(tuple(tasks))


def _retrieve(answer: asyncio.Future[int]) -> None:
    """Nobody else may be waiting."""
    if not answer.cancelled():
        answer.exception()

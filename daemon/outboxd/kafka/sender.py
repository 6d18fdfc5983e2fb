"""A shared producer for single records: what waits for one partition at the same time goes out as one batch."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from outboxd.errors import BrokerError, OutboxdError, ProducerWedged, RecordRejected, SendOutcomeUnknown, TopicUnknown
from outboxd.kafka.bounded import end
from outboxd.kafka.fencing import Epoch, take_producer_id
from outboxd.kafka.idempotent import IdempotentProducer
from outboxd.kafka.partitioner import partition_of
from outboxd.kafka.security import ClientOptions
from outboxd.ports import OutboundRecord, TopicInfo
from outboxd.records import Headers, Position, TopicPartition

__all__ = ["KafkaSender"]

_OVERHEAD: Final = 61 + 32
"""Bytes of a batch header and of a record's own lengths, at most."""


@dataclass(slots=True)
class _Waiting:
    """A record and whoever waits for its position."""

    record: OutboundRecord
    position: asyncio.Future[Position]


class KafkaSender:
    """`outboxd.ports.Sender` on a real broker.

    A producer object that failed is replaced before the next batch: its id is its own, so nothing has to be fenced, and
    a record whose outcome is unknown is told so, for the caller to repeat under the same identity.
    """

    def __init__(self, options: ClientOptions, *, deadline: timedelta) -> None:
        self._options = options
        self._deadline = deadline
        self._producer: IdempotentProducer | None = None
        self._opening = asyncio.Lock()
        self._queues: dict[TopicPartition, deque[_Waiting]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._spread = itertools.count()
        self._is_closed = False
        self._is_over = False

    async def send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int | None = None
    ) -> Position:
        """Publish one record; returns on the acknowledgement.

        Raises RecordRejected, TopicUnknown, TopicDenied, BrokerUnreachable, SendOutcomeUnknown.
        """
        self._require_open()
        info = await (await self._opened()).topic(topic)
        self._require_open()
        _fits(info, key, value, headers)
        number = next(self._spread) % info.partitions if key is None else partition_of(key, info.partitions)
        record = OutboundRecord(key=key, value=value, headers=headers, timestamp=timestamp)
        waiting = _Waiting(record, asyncio.get_running_loop().create_future())
        self._enqueue(TopicPartition(topic, number), waiting)
        return await waiting.position

    def _enqueue(self, partition: TopicPartition, waiting: _Waiting) -> None:
        queue = self._queues.get(partition)
        if queue is not None:
            queue.append(waiting)
            return
        self._queues[partition] = deque([waiting])
        task = asyncio.create_task(self._drain(partition), name=f"kafka: send to {partition}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _drain(self, partition: TopicPartition) -> None:
        """Send what waits for the partition, batch after batch, until nothing does."""
        queue = self._queues[partition]
        batch: list[_Waiting] = []
        try:
            while queue:
                batch = [waiting for waiting in queue if not waiting.position.done()]
                queue.clear()
                await self._publish(partition, batch)
        finally:
            del self._queues[partition]
            for waiting in (*batch, *queue):
                _fail(waiting, SendOutcomeUnknown("the sender was closed"))

    async def _publish(self, partition: TopicPartition, batch: list[_Waiting]) -> None:
        """Send all of ``batch``, taking out whoever has an answer."""
        limit = len(batch)
        while batch:
            try:
                count, base = await self._attempt(partition, batch[:limit])
            except RecordRejected as error:
                if min(limit, len(batch)) > 1:
                    limit = 1  # one of them is at fault: each goes alone
                else:
                    _fail(batch.pop(0), error)
            except OutboxdError as error:
                while batch:
                    _fail(batch.pop(0), error)
            else:
                for index in range(count):
                    waiting = batch.pop(0)
                    if not waiting.position.done():
                        waiting.position.set_result(Position(*partition, base + index))

    async def _attempt(self, partition: TopicPartition, batch: Sequence[_Waiting]) -> tuple[int, int]:
        """How many of the first records were written, and the offset of the first one."""
        producer = await self._opened()
        built = producer.build([waiting.record for waiting in batch])
        try:
            return built.count, await producer.send(partition, built)
        except TopicUnknown:
            raise  # nothing was handed over
        except BrokerError as error:
            await self._replace(producer)
            if isinstance(error, ProducerWedged):
                raise SendOutcomeUnknown(error.message) from error
            raise

    async def _opened(self) -> IdempotentProducer:
        async with self._opening:
            if self._producer is None:
                self._require_going()
                producer = IdempotentProducer(self._options, compression="zstd", deadline=self._deadline)
                await producer.open(self._take)
                if self._is_over:  # nobody would close it any more
                    await producer.abandon()
                self._require_going()
                self._producer = producer
            return self._producer

    def _require_open(self) -> None:
        if self._is_closed:
            raise ProducerWedged("the sender is closed")

    def _require_going(self) -> None:
        if self._is_over:
            raise ProducerWedged("the sender is closed")

    async def _take(self, client: Any) -> Epoch:
        return await take_producer_id(client, seconds=self._options.answer_deadline.total_seconds())

    async def _replace(self, producer: IdempotentProducer) -> None:
        if self._producer is producer:
            self._producer = None
        await producer.abandon()

    async def close(self) -> None:
        """Send what waits and wait for its acknowledgement within the close deadline, then leave no task behind."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._options.close_deadline.total_seconds())
        self._is_over = True
        late = list(self._tasks)
        for task in late:
            await end(task)
        producer, self._producer = self._producer, None
        if producer is not None:
            await (producer.abandon() if late else producer.close())


def _fits(info: TopicInfo, key: bytes | None, value: bytes | None, headers: Headers) -> None:
    if info.max_message_bytes is None:
        return
    size = _OVERHEAD + len(key or b"") + len(value or b"")
    size += sum(10 + 4 * len(name) + len(content or b"") for name, content in headers)
    if size > info.max_message_bytes:
        raise RecordRejected(
            f"the record has about {size} bytes, topic {info.name} takes {info.max_message_bytes}",
            suggestion="Raise the topic's max.message.bytes.",
        )


def _fail(waiting: _Waiting, error: OutboxdError) -> None:
    if not waiting.position.done():
        waiting.position.set_exception(error)

"""One idempotent producer object with an id and epoch of its own: opened once, given up for good at the first doubt."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import aiokafka
import aiokafka.errors as kafka

from outboxd.errors import ProducerWedged, SendOutcomeUnknown, TopicUnknown
from outboxd.kafka.batch import KafkaBatch, build_batch
from outboxd.kafka.bounded import call, end
from outboxd.kafka.cluster import LATEST, TopicDirectory, list_offsets
from outboxd.kafka.connecting import connect
from outboxd.kafka.fencing import Epoch
from outboxd.kafka.internals import (
    abandon,
    adopt_epoch,
    close_client,
    is_stopped,
    release_unstarted,
    sender_task,
    withdraw,
)
from outboxd.kafka.security import ClientOptions
from outboxd.kafka.translation import translate_send
from outboxd.ports import OutboundRecord, TopicInfo
from outboxd.records import TopicPartition

__all__ = ["IdempotentProducer"]

_BATCH_BYTES: Final = 1_000_000
_PATIENCE: Final = 2.0
"""Seconds without an acknowledgement after which it is asked whether the topic is still there."""


class IdempotentProducer:
    """An `AIOKafkaProducer` whose epoch is taken by ``take``, with deadlines of our own.

    Idempotent batches never expire in aiokafka, so each `send` has a deadline; when it passes the outcome is unknown and
    the object is of no use any more (`kafka.abandon` and a new one).
    """

    def __init__(self, options: ClientOptions, *, compression: str | None, deadline: timedelta) -> None:
        self._options = options
        self._compression = compression
        self._deadline = deadline.total_seconds()
        self._answer = options.answer_deadline.total_seconds()
        self._producer: Any = None
        self._topics: TopicDirectory | None = None
        self._wedged: set[TopicPartition] = set()

    async def open(self, take: Callable[[Any], Awaitable[Epoch]]) -> Epoch:
        """Connect, take an epoch with ``take(client)`` and start. Raises BrokerUnreachable, BrokerDenied, ProducerFenced."""
        producer = aiokafka.AIOKafkaProducer(
            **self._options.arguments(),
            enable_idempotence=True,
            compression_type=self._compression,
            max_batch_size=_BATCH_BYTES,
        )
        try:
            await connect(producer.client, self._options)
            epoch = await take(producer.client)
            await adopt_epoch(producer, epoch)
        except BaseException:
            release_unstarted(producer)
            await close_client(producer.client)
            raise
        self._producer = producer
        self._topics = TopicDirectory(producer.client, seconds=self._answer)
        return epoch

    @property
    def topics(self) -> TopicDirectory:
        """Looks topics up over this producer's connections."""
        if self._topics is None:
            raise ProducerWedged("the producer is not open")
        return self._topics

    async def topic(self, name: str) -> TopicInfo:
        """The topic, remembered for a while. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        return await self.topics.get(name)

    def build(self, records: Sequence[OutboundRecord]) -> KafkaBatch:
        """See `build_batch`."""
        return build_batch(self._require(), records)

    async def end_offset(self, partition: TopicPartition) -> int:
        """The offset after the last record, aborted and open transactions included."""
        return (await list_offsets(self._require().client, [partition], LATEST, seconds=self._answer))[partition]

    async def send(self, partition: TopicPartition, batch: KafkaBatch) -> int:
        """Write the batch; its first record's offset. Errors as `outboxd.ports.RelayProducer.send` says."""
        producer = self._require()
        sender = sender_task(producer)
        if sender is not None and sender.done():
            raise ProducerWedged("the client's sender has ended")
        if partition in self._wedged:
            raise ProducerWedged(f"an earlier batch for {partition} was refused: the sequence is broken")
        info = await self.topic(partition.topic)
        if not 0 <= partition.partition < info.partitions:
            raise TopicUnknown(f"topic {partition.topic} has no partition {partition.partition}", topic=partition.topic)
        doing = f"publish to {partition}"
        # One batch of a partition at a time: nothing waits for a slot, so this ends as soon as metadata is there, and
        # a call that is late has not handed anything over.
        acknowledged = await call(
            producer.send_batch(batch.builder, partition.topic, partition=partition.partition),
            seconds=self._answer,
            doing=doing,
            topic=partition.topic,
        )
        try:
            await self._resolved(producer, partition, acknowledged)
            return int(acknowledged.result().offset)
        except (kafka.KafkaError, kafka.IllegalOperation, OSError) as error:
            translated = translate_send(error, doing=doing, topic=partition.topic)
            if not isinstance(translated, TopicUnknown):
                self._wedged.add(partition)
            raise translated from error
        finally:
            _retrieve(acknowledged)

    async def _resolved(self, producer: Any, partition: TopicPartition, acknowledged: asyncio.Future[Any]) -> None:
        """Wait for the acknowledgement, for the sender's death, for the topic's disappearance, or for the deadline."""
        until = time.monotonic() + self._deadline
        sender = sender_task(producer)
        watched = {acknowledged} if sender is None else {acknowledged, sender}
        while not acknowledged.done():
            left = until - time.monotonic()
            if left <= 0:
                raise SendOutcomeUnknown(
                    f"no acknowledgement from {partition} within {self._deadline:g} s",
                    suggestion="Fence, read the topic's tail, then send again.",
                )
            await asyncio.wait(watched, timeout=min(left, _PATIENCE), return_when=asyncio.FIRST_COMPLETED)
            if acknowledged.done():
                return
            if sender is not None and sender.done():
                raise ProducerWedged(f"the client's sender ended before {partition} acknowledged")
            await self._still_there(producer, partition, seconds=min(_PATIENCE, max(0.0, until - time.monotonic())))

    async def _still_there(self, producer: Any, partition: TopicPartition, *, seconds: float) -> None:
        """Take the batch back when its topic is gone: the client would ask for a leader thousands of times a second."""
        try:
            async with asyncio.timeout(seconds):  # a frozen broker answers nothing: the send's own deadline goes first
                await self.topics.look_up(partition.topic)
        except TopicUnknown:
            never_sent = withdraw(producer, partition.topic, partition.partition)
            if never_sent:
                raise
            if never_sent is False:
                raise SendOutcomeUnknown(f"topic {partition.topic} went away while {partition} was written") from None
        except Exception:  # noqa: BLE001 - the question is a courtesy: the deadline decides
            return

    def _require(self) -> Any:
        if self._producer is None or is_stopped(self._producer):
            raise ProducerWedged("the producer is not open")
        return self._producer

    async def close(self) -> None:
        """Flush and stop within the close deadline; whatever is left then is given up."""
        producer = self._producer
        if producer is None or is_stopped(producer):
            return
        stopping = asyncio.create_task(producer.stop(), name="kafka: stop the producer")
        try:
            await end(stopping, seconds=self._options.close_deadline.total_seconds(), wait_first=True)
        finally:
            await self.abandon()

    async def abandon(self) -> None:
        """Give up at once. A pending `send` raises SendOutcomeUnknown."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await abandon(producer, kafka.RequestTimedOutError("the producer was given up"))


def _retrieve(future: asyncio.Future[Any]) -> None:
    if future.done():
        if not future.cancelled():
            future.exception()
    else:
        future.add_done_callback(_retrieve)

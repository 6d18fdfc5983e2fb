"""An in-memory broker: logs, producers' sequences and epochs, fencing, and the ways in which a real one lets one down."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from outboxd.errors import (
    BrokerUnreachable,
    ProducerFenced,
    ProducerWedged,
    RecordRejected,
    SendOutcomeUnknown,
    TopicDenied,
    TopicUnknown,
)
from outboxd.ids import HEADER_ROW_ID, parse_row_identity
from outboxd.ports import Batch, Clock, OutboundRecord, TopicInfo
from outboxd.records import RawRecord, TimestampType, TopicPartition
from outboxd.testing.fakes.faults import Faults

__all__ = ["FakeAdmin", "FakeBatch", "FakeBroker", "FakeProducer"]

_FUTURE_LIMIT = 3_600_000
_KEPT_BATCHES = 5


@dataclass(slots=True)
class _Topic:
    info: TopicInfo
    is_denied: bool = False


@dataclass(slots=True)
class _ProducerState:
    """What a partition remembers of one producer id: its epoch, next sequence, and the last batches."""

    epoch: int
    next_sequence: int = 0
    batches: list[tuple[int, int]] = field(default_factory=list)
    """(first sequence, base offset), oldest first."""


class FakeBroker:
    """A cluster, and the factory of its clients.

    ``is_down`` makes every question and every send raise. ``faults`` may
    befall `open`, `send`, `end_offset`, `topic` and `read`. ``rejects`` are values that the broker refuses whatever
    their size. Logs hold None where a control record stands.
    """

    def __init__(self, clock: Clock, faults: Faults | None = None) -> None:
        self.faults = Faults() if faults is None else faults
        self.clock = clock
        self.is_down = False
        self.rejects: set[bytes] = set()
        self.producers: list[FakeProducer] = []
        self.row_ids: set[int] = set()
        """The row ids of the relay that stand in any log."""
        self.stale_refused = 0
        """Batches of fenced producers that arrived and were refused."""
        self._topics: dict[str, _Topic] = {}
        self._logs: dict[TopicPartition, list[RawRecord | None]] = {}
        self._states: dict[tuple[TopicPartition, int], _ProducerState] = {}
        self._ids: dict[str, tuple[int, int]] = {}

    # -- what a test sees and does

    def create_topic(
        self,
        name: str,
        partitions: int = 2,
        *,
        max_message_bytes: int | None = 1_000_000,
        after: int | None = _FUTURE_LIMIT,
    ) -> None:
        """A topic with so many partitions; `create_topic` again changes its settings and may add partitions."""
        info = TopicInfo(
            name=name, partitions=partitions, max_message_bytes=max_message_bytes, timestamp_after_max=after
        )
        self._topics[name] = _Topic(info)
        for partition in range(partitions):
            self._logs.setdefault(TopicPartition(name, partition), [])

    def recreate_topic(self, name: str) -> None:
        """Delete the topic with everything in it and create it again: its offsets start at 0."""
        for partition in self._logs:
            if partition.topic == name:
                self._logs[partition] = []
        self._states = {key: state for key, state in self._states.items() if key[0].topic != name}

    def deny(self, name: str, is_denied: bool = True) -> None:  # reads as a statement
        """Refuse this client writes to the topic and everything about it, or allow them again."""
        self._topics[name].is_denied = is_denied

    @property
    def topics(self) -> Sequence[str]:
        """The topics that exist."""
        return list(self._topics)

    def log(self, name: str, partition: int) -> list[RawRecord]:
        """The ordinary records of one partition."""
        return [record for record in self._logs[TopicPartition(name, partition)] if record is not None]

    def records(self, name: str) -> list[RawRecord]:
        """The ordinary records of the topic, partition by partition."""
        return [record for index in range(self._topics[name].info.partitions) for record in self.log(name, index)]

    # -- clients

    def relay_producer(
        self,
        transactional_id: str,
        *,
        compression: str | None,  # noqa: ARG002  # this log keeps records as they are
        deadline: timedelta,
    ) -> FakeProducer:
        """A new producer object, without an epoch until it is opened."""
        producer = FakeProducer(self, transactional_id, deadline.total_seconds())
        self.producers.append(producer)
        return producer

    def admin(self) -> FakeAdmin:
        """A client for questions."""
        return FakeAdmin(self)

    # -- the cluster's side

    def reach(self) -> None:
        """Raise BrokerUnreachable while the cluster is down."""
        if self.is_down:
            raise BrokerUnreachable("the broker does not answer")

    def info(self, name: str) -> TopicInfo:
        """The topic's settings; raises TopicUnknown, TopicDenied."""
        self.reach()
        topic = self._topics.get(name)
        if topic is None:
            raise TopicUnknown(f"the topic {name} does not exist", topic=name)
        if topic.is_denied:
            raise TopicDenied(f"not authorised for the topic {name}", topic=name)
        return topic.info

    def end(self, partition: TopicPartition) -> int:
        """The offset after the last record, control records included."""
        self.info(partition.topic)
        return len(self._logs[partition])

    def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Ordinary records from the offset on."""
        self.info(partition.topic)
        found = [record for record in self._logs[partition][max(0, offset) :] if record is not None]
        return found[:limit]

    def fence(
        self, transactional_id: str, partitions: Collection[TopicPartition]
    ) -> tuple[int, int, frozenset[TopicPartition]]:
        """Give the id's next epoch, with markers of it in these partitions: producer id, epoch, refused partitions."""
        self.reach()
        producer_id, epoch = self._ids.get(transactional_id, (len(self._ids) + 1, -1))
        epoch += 1
        refused = set()
        for partition in partitions:
            topic = self._topics.get(partition.topic)
            if topic is None or topic.is_denied:
                refused.add(partition)
                continue
            self._states[partition, producer_id] = _ProducerState(epoch)
            self._logs[partition].append(None)
        if partitions:
            epoch += 1
        self._ids[transactional_id] = (producer_id, epoch)
        return producer_id, epoch, frozenset(refused)

    def append(
        self, producer: FakeProducer, partition: TopicPartition, sequence: int, records: Sequence[OutboundRecord]
    ) -> int:
        """Write a batch as a leader does, or refuse it; the offset of its first record."""
        info = self.info(partition.topic)
        if partition not in self._logs:
            raise TopicUnknown(f"{partition} does not exist", topic=partition.topic)
        state = self._states.get((partition, producer.producer_id))
        if state is not None and producer.epoch < state.epoch:
            self.stale_refused += 1
            raise ProducerFenced(f"{partition} has seen epoch {state.epoch}, not {producer.epoch}")
        self._check(info, records)
        if state is None or producer.epoch > state.epoch:
            if state is not None and sequence != 0:
                raise ProducerWedged(f"a new epoch starts with sequence {sequence}")
            state = _ProducerState(producer.epoch, sequence)
            self._states[partition, producer.producer_id] = state
        for first, base in state.batches:
            if first == sequence:
                return base  # acknowledged as a duplicate, and not written
        if sequence != state.next_sequence:
            raise ProducerWedged(f"{partition} expects sequence {state.next_sequence}, not {sequence}")
        log = self._logs[partition]
        base = len(log)
        now = int(self.clock.now().timestamp() * 1000)
        log.extend(_stored(partition, base + index, record, now) for index, record in enumerate(records))
        for record in records:
            if (identity := parse_row_identity(record.headers.get(HEADER_ROW_ID))) is not None:
                self.row_ids.add(identity[1])
        state.next_sequence += len(records)
        state.batches = [*state.batches, (sequence, base)][-_KEPT_BATCHES:]
        return base

    def _check(self, info: TopicInfo, records: Sequence[OutboundRecord]) -> None:
        size = 61 + sum(8 + len(record.key or b"") + len(record.value or b"") for record in records)
        if info.max_message_bytes is not None and size > info.max_message_bytes:
            raise RecordRejected(f"a batch of {size} bytes is too large for {info.name}")
        now = int(self.clock.now().timestamp() * 1000)
        for record in records:
            if record.value is not None and record.value in self.rejects:
                raise RecordRejected("the broker refuses this record")
            limit = info.timestamp_after_max
            if limit is not None and record.timestamp is not None and record.timestamp > now + limit:
                raise RecordRejected("a timestamp is too far ahead")


def _stored(partition: TopicPartition, offset: int, record: OutboundRecord, now: int) -> RawRecord:
    return RawRecord(
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        timestamp=now if record.timestamp is None else record.timestamp,
        timestamp_type=TimestampType.CREATE_TIME,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


@dataclass(slots=True)
class FakeBatch:
    """A built batch, good for one send."""

    records: Sequence[OutboundRecord]
    is_used: bool = False

    @property
    def count(self) -> int:
        """Records in it."""
        return len(self.records)


class FakeProducer:
    """The relay producer port: sequences per partition, one epoch, wedged after a rejected batch as the real one is."""

    def __init__(self, broker: FakeBroker, transactional_id: str, deadline: float) -> None:
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self.is_done = False
        self.fenced: frozenset[TopicPartition] = frozenset()
        """What `open` was asked to fence."""
        self.max_batch = 10_000
        """The most records that `build` takes."""
        self._broker = broker
        self._deadline = deadline
        self._sequences: dict[TopicPartition, int] = {}
        self._sending: dict[TopicPartition, asyncio.Future[int]] = {}

    async def open(self, fence: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Take the next epoch and fence; once per object."""
        assert self.epoch == -1, "a producer object is opened once"
        self.fenced = frozenset(fence)

        def effect() -> frozenset[TopicPartition]:
            self.producer_id, self.epoch, refused = self._broker.fence(self.transactional_id, fence)
            return refused

        return await self._broker.faults.around("open", effect)

    async def topic(self, name: str) -> TopicInfo:
        """The topic's settings."""
        return await self._broker.faults.around("topic", lambda: self._broker.info(name))

    def partition_for(self, topic: TopicInfo, key: bytes | None, spread: int) -> int:
        """A partition that the key alone decides, the spread's without a key; not murmur2: this log is its own."""
        return (spread if key is None else zlib.crc32(key, 7)) % topic.partitions

    def build(self, records: Sequence[OutboundRecord]) -> Batch:
        """A batch of the first records, up to `max_batch`."""
        return FakeBatch(tuple(records[: self.max_batch]))

    async def send(self, partition: TopicPartition, batch: Batch) -> int:
        """Write the batch, or raise what a producer would; never answers later than its deadline."""
        assert isinstance(batch, FakeBatch)
        assert not batch.is_used, "a batch is sent once"
        assert self.epoch >= 0, "a producer is opened before it sends"
        assert partition not in self._sending, "one batch of a partition at a time"
        if self.is_done:
            raise SendOutcomeUnknown("the producer was given up")
        batch.is_used = True
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(batch.records)
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._sending[partition] = answer
        call = asyncio.create_task(self._deliver(partition, sequence, batch.records, answer), name=f"send {partition}")
        try:
            async with asyncio.timeout(self._deadline):
                return await answer
        except TimeoutError as error:
            raise SendOutcomeUnknown(f"no answer from {partition} in time") from error
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            del self._sending[partition]

    async def _deliver(
        self, partition: TopicPartition, sequence: int, records: Sequence[OutboundRecord], answer: asyncio.Future[int]
    ) -> None:
        def effect() -> int:
            if self._broker.is_down:
                raise SendOutcomeUnknown("the connection broke")
            return self._broker.append(self, partition, sequence, records)

        try:
            base = await self._broker.faults.around("send", effect)
        except Exception as error:  # noqa: BLE001  # whatever the broker raised is the answer
            if not answer.done():
                answer.set_exception(error)
        else:
            if not answer.done():
                answer.set_result(base)

    async def end_offset(self, partition: TopicPartition) -> int:
        """The end of the partition's log."""
        return await self._broker.faults.around("end_offset", lambda: self._broker.end(partition))

    async def close(self) -> None:
        """Nothing is buffered here: the same as to abandon."""
        await self.abandon()

    async def abandon(self) -> None:
        """Answer pending sends with "unknown"; what is on its way may still arrive."""
        self.is_done = True
        for answer in self._sending.values():
            if not answer.done():
                answer.set_exception(SendOutcomeUnknown("the producer was given up"))
        await asyncio.sleep(0)


class FakeAdmin:
    """The admin port."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def cluster_id(self) -> str:
        """A name for the cluster."""
        self._broker.reach()
        return "fake-cluster"

    async def topic(self, name: str) -> TopicInfo:
        """The topic's settings."""
        return await self._broker.faults.around("topic", lambda: replace(self._broker.info(name)))

    async def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Records from the offset on."""
        return await self._broker.faults.around("read", lambda: self._broker.read(partition, offset, limit))

    async def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        """The ends of the topic's partitions."""
        partitions = range(self._broker.info(topic).partitions)
        return {TopicPartition(topic, index): self._broker.end(TopicPartition(topic, index)) for index in partitions}

    async def close(self) -> None:
        """Nothing to give back."""
        await asyncio.sleep(0)

"""The brokers of a cluster in memory: topics, logs, transactional ids and groups, and how they answer requests.

Everything here is the server's: requests are plain functions on this state, carried out whenever they arrive, and nothing
of it runs in a task of a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from outboxd.errors import ProducerFenced, RecordRejected, TopicDenied, TopicUnknown
from outboxd.ids import HEADER_ROW_ID, parse_row_identity
from outboxd.ports import Clock, OutboundRecord, TopicInfo
from outboxd.records import NO_HEADERS, Headers, RawRecord, TimestampType, TopicPartition
from outboxd.testing.fakes.faults import Faults
from outboxd.testing.fakes.kafka.batch import batch_size
from outboxd.testing.fakes.kafka.bell import Bell
from outboxd.testing.fakes.kafka.coordinator import Coordinator
from outboxd.testing.fakes.kafka.log import Fetched, PartitionLog
from outboxd.testing.fakes.kafka.requests import NoBroker
from outboxd.testing.fakes.kafka.transactions import TransactionCoordinator

__all__ = ["Brokers"]

_T = TypeVar("_T")

_MESSAGE_BYTES: Final = 1_048_588
_AHEAD: Final = 3_600_000


@dataclass(slots=True)
class _Topic:
    info: TopicInfo
    is_denied: bool = False


class Brokers:
    """See the module. ``context`` is what the server's timers run in: by default the one it was made in."""

    def __init__(
        self,
        clock: Clock,
        faults: Faults | None = None,
        topics: Mapping[str, int] | None = None,
        *,
        context: Context | None = None,
    ) -> None:
        self.clock = clock
        self.faults = Faults() if faults is None else faults
        """What befalls each call of a client. A simulated network takes its place."""
        self.rejects: set[bytes] = set()
        """Values that are refused whatever their size."""
        self.row_ids: set[int] = set()
        """The row ids of relays that stand in any log."""
        self.stale_refused = 0
        """Batches of fenced producers that arrived and were refused."""
        self.shortest_session = 6.0
        self.arrivals = Bell()
        """Rings when brokers are there again."""
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.transactions = TransactionCoordinator(self._mark)
        self.coordinator = Coordinator(self)
        self._topics: dict[str, _Topic] = {}
        self._context = copy_context() if context is None else context
        self._is_down = False
        for name, partitions in (topics or {}).items():
            self.create_topic(name, partitions)

    # -- topics, as an operator sees them

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        max_message_bytes: int | None = _MESSAGE_BYTES,
        before: int | None = None,
        after: int | None = _AHEAD,
    ) -> None:
        """Make a topic; once more changes its settings and may add partitions, or take away those that are empty.

        ``before`` and ``after`` bound timestamps, in milliseconds.
        """
        info = TopicInfo(
            name=name,
            partitions=partitions,
            max_message_bytes=max_message_bytes,
            timestamp_before_max=before,
            timestamp_after_max=after,
        )
        self._topics[name] = _Topic(info)
        wanted = [TopicPartition(name, number) for number in range(partitions)]
        for partition in [partition for partition in self.logs if partition.topic == name and partition not in wanted]:
            assert not self.logs[partition].slots, f"{partition} is not empty"
            del self.logs[partition]
        for partition in wanted:
            if partition not in self.logs:
                self.logs[partition] = PartitionLog(partition)

    def delete_topic(self, name: str) -> None:
        """Delete the topic with everything in it, what producers and groups left there included."""
        del self._topics[name]
        for partition in self.partitions_of(name):
            self.logs.pop(partition).changed.ring()
        self.coordinator.forget_topic(name)

    def recreate_topic(self, name: str) -> None:
        """Delete the topic and make it again: its offsets start at 0."""
        info = self._topics[name].info
        self.delete_topic(name)
        self.create_topic(name, info.partitions)
        self._topics[name].info = info

    def deny(self, name: str, is_denied: bool = True) -> None:  # reads as a statement
        """Refuse everybody the topic and everything about it, or allow it again."""
        self._topics[name].is_denied = is_denied

    @property
    def topics(self) -> Sequence[str]:
        """The topics that exist."""
        return list(self._topics)

    def log(self, name: str, partition: int = 0) -> list[RawRecord]:
        """The ordinary records of one partition."""
        return [record for record in self.logs[TopicPartition(name, partition)].slots if record is not None]

    def records(self, name: str) -> list[RawRecord]:
        """The ordinary records of the topic, partition by partition."""
        return [record for number in range(self._topics[name].info.partitions) for record in self.log(name, number)]

    # -- what others put into logs

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        *,
        partition: int = 0,
        headers: Headers = NO_HEADERS,
        timestamp: int | None = None,
    ) -> int:
        """Append a record of somebody else's; its offset."""
        log = self.logs[TopicPartition(topic, partition)]
        offset = log.end
        log.append(
            [_stored(log, offset, OutboundRecord(key=key, value=value, headers=headers), timestamp or self._now())]
        )
        return offset

    def mark(self, topic: str, partition: int = 0) -> None:
        """Append a control record, such as the end of somebody's transaction."""
        self.logs[TopicPartition(topic, partition)].append([None])

    def trim(self, partition: TopicPartition, start: int) -> None:
        """Retention removes everything before ``start``."""
        self.logs[partition].trim(start)

    def spoil(self, partition: TopicPartition, offset: int, why: str = "header name is not UTF-8") -> None:
        """From now on no client can decode the record at this offset."""
        self.logs[partition].spoiled[offset] = why
        self.logs[partition].changed.ring()

    # -- being there

    @property
    def is_down(self) -> bool:
        """Whether no broker is there. State stays; sessions do not end meanwhile."""
        return self._is_down

    @is_down.setter
    def is_down(self, is_down: bool) -> None:
        if self._is_down and not is_down:
            self.coordinator.renew_all()
        self._is_down = is_down
        if not is_down:
            self.arrivals.ring()

    def answer(self, effect: Callable[[], _T]) -> _T:
        """Carry a request out. Raises NoBroker while no broker is there."""
        if self._is_down:
            raise NoBroker("no broker is there")
        return effect()

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        """A timer of the server's."""
        return asyncio.get_running_loop().call_later(seconds, callback, *arguments, context=self._context)

    # -- requests

    def describe(self, name: str) -> TopicInfo:
        """The topic's settings. Raises TopicUnknown, TopicDenied."""
        topic = self._topics.get(name)
        if topic is None:
            raise TopicUnknown(f"topic {name} does not exist", topic=name)
        if topic.is_denied:
            raise TopicDenied(f"this user may not describe topic {name}", topic=name)
        return replace(topic.info)

    def partitions_of(self, topic: str) -> Sequence[TopicPartition]:
        """The topic's partitions; none when there is no such topic."""
        return [partition for partition in self.logs if partition.topic == topic]

    def readable(self, partition: TopicPartition) -> PartitionLog:
        """The partition's log. Raises TopicUnknown, TopicDenied."""
        self.describe(partition.topic)
        if partition not in self.logs:
            raise TopicUnknown(f"topic {partition.topic} has no partition {partition.partition}", topic=partition.topic)
        return self.logs[partition]

    def end(self, partition: TopicPartition) -> int:
        """The offset after the last record, control records included. Raises TopicUnknown, TopicDenied."""
        return self.readable(partition).end

    def fetch(self, partition: TopicPartition, offset: int) -> Fetched:
        """What stands from an offset on. Raises OffsetOutOfRange, TopicUnknown, TopicDenied."""
        return self.readable(partition).fetch(offset)

    def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Ordinary records from an offset on. Raises FetchUndecodable, TopicUnknown, TopicDenied."""
        return self.readable(partition).read(offset, limit)

    def add_partitions(
        self, transactional_id: str, epoch: tuple[int, int], partitions: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Take partitions into the id's transaction; those that are refused, and then none was taken."""

        def is_refused(partition: TopicPartition) -> bool:
            topic = self._topics.get(partition.topic)
            return topic is None or topic.is_denied or partition not in self.logs

        return self.transactions.add_partitions(transactional_id, epoch, partitions, is_refused)

    def append(
        self,
        producer_id: int,
        epoch: int,
        partition: TopicPartition,
        sequence: int,
        records: Sequence[OutboundRecord],
    ) -> int:
        """Write a batch as a leader does; the offset of its first record.

        Raises TopicUnknown, TopicDenied, RecordRejected, ProducerFenced, ProducerWedged; then nothing was written.
        """
        log = self.readable(partition)
        now = self._now()
        self._check(self._topics[partition.topic].info, records, now)
        try:
            known = log.admit(producer_id, epoch, sequence, len(records))
        except ProducerFenced:
            self.stale_refused += 1
            raise
        if known is not None:
            return known
        base = log.end
        log.remember(producer_id, epoch, sequence, len(records), base)
        log.append([_stored(log, base + index, record, now) for index, record in enumerate(records)])
        for record in records:
            if (identity := parse_row_identity(record.headers.get(HEADER_ROW_ID))) is not None:
                self.row_ids.add(identity[1])
        return base

    # -- the server's own affairs

    def _check(self, info: TopicInfo, records: Sequence[OutboundRecord], now: int) -> None:
        size = batch_size(records)
        if info.max_message_bytes is not None and size > info.max_message_bytes:
            raise RecordRejected(f"a batch of {size} bytes is too large for {info.name}")
        for record in records:
            if record.value is not None and record.value in self.rejects:
                raise RecordRejected("the broker refuses this record")
            timestamp = record.timestamp
            if timestamp is None or timestamp == -1:
                continue
            if info.timestamp_after_max is not None and timestamp > now + info.timestamp_after_max:
                raise RecordRejected(f"timestamp {timestamp} is too far ahead")
            if info.timestamp_before_max is not None and timestamp < now - info.timestamp_before_max:
                raise RecordRejected(f"timestamp {timestamp} is too old")

    def _mark(self, partition: TopicPartition, producer_id: int, epoch: int) -> None:
        if partition in self.logs:
            self.logs[partition].end_transaction(producer_id, epoch)

    def _now(self) -> int:
        return int(self.clock.now().timestamp() * 1000)


def _stored(log: PartitionLog, offset: int, record: OutboundRecord, now: int) -> RawRecord:
    return RawRecord(
        topic=log.partition.topic,
        partition=log.partition.partition,
        offset=offset,
        timestamp=now if record.timestamp is None else record.timestamp,
        timestamp_type=TimestampType.CREATE_TIME,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )

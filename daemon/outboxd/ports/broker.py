"""The broker: producers with an epoch, a shared sender, members of consumer groups, questions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from outboxd.errors import BrokerError
from outboxd.records import Headers, Position, RawRecord, TopicPartition

__all__ = [
    "Admin",
    "AssignmentListener",
    "Batch",
    "BrokerFactory",
    "ConsumerPort",
    "OutboundRecord",
    "RelayProducer",
    "Sender",
    "TopicInfo",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """What publishing must know of a topic. Times in milliseconds; None where the topic sets no limit."""

    name: str
    partitions: int
    max_message_bytes: int | None = None
    timestamp_before_max: int | None = None
    timestamp_after_max: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundRecord:
    """A record to publish; ``timestamp`` in milliseconds, None means now."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None = None


class Batch(Protocol):
    """A built record batch, to be sent once."""

    @property
    def count(self) -> int:
        """Records in it."""
        ...


class RelayProducer(Protocol):
    """An idempotent producer with an epoch of its own.

    One object, one epoch: a (producer id, epoch) is never used by two objects, since the broker acknowledges a
    sequence that it has seen without writing it.
    """

    async def open(self, fence: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Get the transactional id's next epoch and fence every older producer on these partitions.

        When this returns, older producers of the id are refused on these partitions and whatever they had in flight
        there is in the log or never will be. Gives the partitions that the coordinator refused, which are *not*
        fenced. Raises BrokerUnreachable, BrokerDenied, ProducerFenced.
        """
        ...

    async def topic(self, name: str) -> TopicInfo:
        """Look the topic up (cached, also when it is unknown). Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        ...

    def partition_for(self, topic: TopicInfo, key: bytes | None, spread: int) -> int:
        """The key's partition by murmur2, as the Java client; without a key ``spread`` modulo the partitions."""
        ...

    def build(self, records: Sequence[OutboundRecord]) -> Batch:
        """A batch of as many of the first records as fit, at least one. Raises RecordRejected for the first one."""
        ...

    async def send(self, partition: TopicPartition, batch: Batch) -> int:
        """Write the batch atomically; give the offset of its first record.

        At most one call per partition at a time. Raises RecordRejected, TopicUnknown, TopicDenied (nothing written);
        SendOutcomeUnknown, ProducerWedged, ProducerFenced, BrokerUnreachable (this producer is done: abandon it).
        """
        ...

    async def end_offset(self, partition: TopicPartition) -> int:
        """The offset after the last record of the partition."""
        ...

    async def close(self) -> None:
        """Flush within a deadline, then leave no task behind."""
        ...

    async def abandon(self) -> None:
        """Give up at once: nothing queued is sent any more, no task is left. Bytes in a socket may still arrive."""
        ...


class Sender(Protocol):
    """A shared idempotent producer for single records (dead letters, forwarding)."""

    async def send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int | None = None
    ) -> Position:
        """Publish one record to the partition of its key and wait for the acknowledgement.

        Raises RecordRejected, TopicUnknown, TopicDenied, BrokerUnreachable, SendOutcomeUnknown.
        """
        ...

    async def close(self) -> None:
        """Flush within a deadline, then leave no task behind."""
        ...


class AssignmentListener(Protocol):
    """Told of each rebalance, in order; the next assignment waits until `revoked` has returned."""

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are taken away; commits are still possible until this returns."""
        ...

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are ours from now on; each must be given a position by `seek` before it is polled."""
        ...

    def refused(self, error: BrokerError) -> None:
        """The group does not take this member, for a reason that does not pass by itself (an ACL, its settings)."""
        ...


class ConsumerPort(Protocol):
    """A member of a consumer group that decides positions itself and decodes nothing."""

    async def start(self, listener: AssignmentListener) -> None:
        """Join the group. Raises BrokerUnreachable, BrokerDenied, TopicUnknown."""
        ...

    async def poll(self, partition: TopicPartition, *, max_records: int, timeout: timedelta) -> Sequence[RawRecord]:
        """The next records of this partition alone: a poll over several loses records when one of them fails.

        Raises OffsetOutOfRange, FetchUndecodable, AssignmentLost.
        """
        ...

    def pause(self, partition: TopicPartition) -> None:
        """Fetch nothing for it until `resume`; positions stay. No error when it is not ours."""
        ...

    def resume(self, partition: TopicPartition) -> None:
        """Fetch for it again. No error when it is not ours."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read from this offset next. Raises AssignmentLost."""
        ...

    async def position(self, partition: TopicPartition) -> int:
        """The offset that is read next; passes over control records too. Raises AssignmentLost."""
        ...

    async def committed(self, partition: TopicPartition) -> tuple[int, str] | None:
        """The committed offset and its metadata; None when there is none."""
        ...

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit next offsets with their metadata. Raises AssignmentLost (delivered elsewhere), BrokerUnreachable."""
        ...

    async def beginning_offset(self, partition: TopicPartition) -> int:
        """The first offset of the log."""
        ...

    async def end_offset(self, partition: TopicPartition) -> int:
        """The offset after the last record."""
        ...

    async def stop(self) -> None:
        """Leave the group (a static member stays) within a deadline, leaving no task behind."""
        ...


class Admin(Protocol):
    """Questions about the cluster."""

    async def cluster_id(self) -> str:
        """The cluster's id; part of every letter's id."""
        ...

    async def topic(self, name: str) -> TopicInfo:
        """Look a topic up without creating it. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        ...

    async def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Up to ``limit`` records from ``offset`` on (from the log's start when that is later), without a group."""
        ...

    async def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        """For each partition of the topic the offset after its last record."""
        ...

    async def close(self) -> None:
        """Leave no task behind."""
        ...


class BrokerFactory(Protocol):
    """Makes the clients of one Kafka connection."""

    def relay_producer(self, transactional_id: str, *, compression: str | None, deadline: timedelta) -> RelayProducer:
        """A new producer object; ``deadline`` bounds each `send`."""
        ...

    def sender(self, *, deadline: timedelta) -> Sender:
        """A shared producer for single records."""
        ...

    def consumer(
        self,
        *,
        topics: Sequence[str],
        group: str,
        session_timeout: timedelta,
        rebalance_timeout: timedelta,
        max_poll_interval: timedelta,
        instance_id: str | None,
    ) -> ConsumerPort:
        """A new, unstarted member of ``group``."""
        ...

    def admin(self) -> Admin:
        """A client for questions."""
        ...

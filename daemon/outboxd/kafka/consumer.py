"""A member of a consumer group on a real broker: polls partition by partition, commits what it is told to."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import aiokafka
import aiokafka.errors as kafka
from aiokafka.structs import OffsetAndMetadata
from aiokafka.structs import TopicPartition as KafkaPartition

from outboxd.errors import AssignmentLost, BrokerUnreachable
from outboxd.kafka.bounded import call, end
from outboxd.kafka.cluster import EARLIEST, LATEST, leaders, list_offsets
from outboxd.kafka.connecting import diagnose
from outboxd.kafka.conversion import raw_record
from outboxd.kafka.internals import client_of, committed_offset, stop_consumer_tasks, touch
from outboxd.kafka.library_logs import captured_errors
from outboxd.kafka.membership import Membership
from outboxd.kafka.security import ClientOptions
from outboxd.kafka.translation import translate
from outboxd.ports import AssignmentListener
from outboxd.records import RawRecord, TopicPartition

__all__ = ["KafkaConsumer"]

_TOUCH_EVERY: Final = 1.0
_PASSING: Final = (
    kafka.CommitFailedError,
    kafka.IllegalStateError,
    kafka.ConsumerStoppedError,
    kafka.OffsetOutOfRangeError,
)
"""Errors that belong to a commit, a poll or an end, not to the membership."""


class KafkaConsumer:
    """`outboxd.ports.ConsumerPort` on a real broker.

    Reads committed records only: those of aborted transactions are nobody's business. Positions are ours alone
    (`auto_offset_reset="none"`), and each poll names its partition, since one call over several loses records of the
    others when one of them fails.
    """

    def __init__(
        self,
        options: ClientOptions,
        *,
        topics: Sequence[str],
        group: str,
        session_timeout: timedelta,
        rebalance_timeout: timedelta,
        max_poll_interval: timedelta,
        instance_id: str | None,
    ) -> None:
        self._options = options
        self._topics = tuple(topics)
        self._arguments = {
            **options.arguments(),
            "group_id": group,
            "group_instance_id": instance_id,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "isolation_level": "read_committed",
            "session_timeout_ms": _milliseconds(session_timeout),
            "heartbeat_interval_ms": max(1, _milliseconds(session_timeout) // 10),
            "rebalance_timeout_ms": _milliseconds(rebalance_timeout),
            "max_poll_interval_ms": _milliseconds(max_poll_interval),
        }
        self._answer = options.answer_deadline.total_seconds()
        self._consumer: Any = None
        self._membership: Membership | None = None
        self._polls: dict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._touching: asyncio.Task[None] | None = None

    async def start(self, listener: AssignmentListener) -> None:
        """Connect, see that every topic is there, and join. Raises BrokerUnreachable, BrokerDenied, TopicUnknown."""
        consumer = self._consumer = aiokafka.AIOKafkaConsumer(**self._arguments)
        self._membership = Membership(listener)
        servers = ", ".join(self._options.bootstrap_servers)
        with captured_errors() as causes:
            try:
                await call(
                    consumer.start(),
                    seconds=self._options.connect_deadline.total_seconds(),
                    doing=f"connect to {servers}",
                )
            except BrokerUnreachable as error:
                raise diagnose(error, causes, servers=servers) from error
        # The client's own look-up would block for the request timeout, and make the topic where that is allowed.
        for topic in self._topics:
            await leaders(client_of(consumer), topic, seconds=self._answer)
        consumer.subscribe(self._topics, listener=self._membership)
        self._touching = asyncio.create_task(self._keep_touching(listener), name="kafka: keep the membership alive")

    async def _keep_touching(self, listener: AssignmentListener) -> None:
        """A member that has no partitions is polled by nobody, and would be put out of the group."""
        while True:
            await asyncio.sleep(_TOUCH_EVERY)
            try:
                await touch(self._consumer)
            except (kafka.KafkaError, OSError) as error:
                # The client tells its error to whoever polls first: without partitions, that is us.
                if not getattr(error, "retriable", True) and not isinstance(error, _PASSING):
                    listener.refused(translate(error, doing="join the group"))

    async def poll(self, partition: TopicPartition, *, max_records: int, timeout: timedelta) -> Sequence[RawRecord]:
        """The next records of this partition. Raises OffsetOutOfRange, FetchUndecodable, AssignmentLost."""
        # One poll of a partition at a time: one that was begun before a rebalance may come back with records of the
        # new assignment, and those have to be given back before anybody reads on.
        async with self._polls[partition]:
            membership = self._joined()
            epoch = membership.epoch
            if partition not in membership.sought:
                raise AssignmentLost(f"{partition} has no position in this assignment")
            try:
                fetched = await self._consumer.getmany(
                    KafkaPartition(*partition), timeout_ms=_milliseconds(timeout), max_records=max_records
                )
            except (kafka.KafkaError, kafka.IllegalOperation, UnicodeDecodeError, OSError) as error:
                if epoch != membership.epoch:
                    raise AssignmentLost(f"{partition} was reassigned while it was read") from error
                raise translate(error, doing=f"read {partition}", topic=partition.topic) from error
            records = [raw_record(record) for batch in fetched.values() for record in batch]
            if epoch != membership.epoch:
                self._give_back(partition, records)
                raise AssignmentLost(f"{partition} was reassigned while it was read")
            return records

    def _give_back(self, partition: TopicPartition, records: Sequence[RawRecord]) -> None:
        if not records:
            return
        try:
            self._consumer.seek(KafkaPartition(*partition), records[0].offset)
        except kafka.IllegalStateError:
            return  # no longer ours

    def pause(self, partition: TopicPartition) -> None:
        """Fetch nothing for it until `resume`."""
        if self._owns(partition):
            self._consumer.pause(KafkaPartition(*partition))

    def resume(self, partition: TopicPartition) -> None:
        """Fetch for it again."""
        if self._owns(partition):
            self._consumer.resume(KafkaPartition(*partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read from this offset next. Raises AssignmentLost."""
        membership = self._joined()
        if partition not in membership.owned:
            raise AssignmentLost(f"{partition} is not ours")
        try:
            self._consumer.seek(KafkaPartition(*partition), offset)
        except kafka.IllegalStateError as error:
            raise AssignmentLost(f"{partition} is not ours any more") from error
        membership.sought.add(partition)

    async def position(self, partition: TopicPartition) -> int:
        """The offset that is read next. Raises AssignmentLost, BrokerUnreachable."""
        self._require_owned([partition])
        position: int = await call(
            self._consumer.position(KafkaPartition(*partition)),
            seconds=self._answer,
            doing=f"tell where {partition} is",
        )
        return position

    async def committed(self, partition: TopicPartition) -> tuple[int, str] | None:
        """The group's committed offset and its metadata. Raises BrokerUnreachable, BrokerDenied."""
        self._joined()
        return await call(
            committed_offset(self._consumer, KafkaPartition(*partition)),
            seconds=self._answer,
            doing=f"read the committed offset of {partition}",
            topic=partition.topic,
        )

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit next offsets. Raises AssignmentLost, BrokerUnreachable, and BrokerError for what Kafka refuses.

        aiokafka's own commit tries for ever while it finds the error retriable, also when the topic is gone.
        """
        self._require_owned(offsets)
        for partition, (offset, _) in offsets.items():
            if offset < 0:  # Kafka would take it
                raise ValueError(f"{partition}: {offset} is no offset")
        await call(
            self._consumer.commit(
                {
                    KafkaPartition(*partition): OffsetAndMetadata(offset, metadata)
                    for partition, (offset, metadata) in offsets.items()
                }
            ),
            seconds=self._answer,
            doing="commit offsets",
        )

    async def beginning_offset(self, partition: TopicPartition) -> int:
        """The first offset of the log."""
        return await self._offset(partition, EARLIEST)

    async def end_offset(self, partition: TopicPartition) -> int:
        """The offset after the last record that may be read."""
        return await self._offset(partition, LATEST)

    async def _offset(self, partition: TopicPartition, at: int) -> int:
        self._joined()
        client = client_of(self._consumer)
        found = await list_offsets(client, [partition], at, seconds=self._answer, committed_only=at == LATEST)
        return found[partition]

    async def stop(self) -> None:
        """Leave the group within the close deadline (a static member stays), leaving no task behind."""
        consumer, self._consumer = self._consumer, None
        if self._touching is not None:
            await end(self._touching)
        if consumer is None:
            return
        stopping = asyncio.create_task(consumer.stop(), name="kafka: stop the consumer")
        try:
            await end(stopping, seconds=self._options.close_deadline.total_seconds(), wait_first=True)
        finally:
            await stop_consumer_tasks(consumer)

    def _joined(self) -> Membership:
        if self._membership is None or self._consumer is None:
            raise AssignmentLost("the consumer is not started")
        return self._membership

    def _owns(self, partition: TopicPartition) -> bool:
        return self._membership is not None and self._consumer is not None and partition in self._membership.owned

    def _require_owned(self, partitions: Collection[TopicPartition]) -> None:
        strangers = set(partitions) - self._joined().owned
        if strangers:
            raise AssignmentLost(f"not ours: {', '.join(map(str, sorted(strangers)))}")


def _milliseconds(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))

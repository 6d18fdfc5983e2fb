"""A member of a consumer group: polls partition by partition, decides positions itself, commits what it is told to."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta

from outboxd.errors import AssignmentLost, BrokerUnreachable
from outboxd.ports import AssignmentListener
from outboxd.records import RawRecord, TopicPartition
from outboxd.testing.fakes.kafka.brokers import Brokers
from outboxd.testing.fakes.kafka.connection import Connection
from outboxd.testing.fakes.kafka.fetching import AssignedLog
from outboxd.testing.fakes.kafka.membership import GroupOptions, Membership
from outboxd.testing.fakes.kafka.plans import ConsumerPlans

__all__ = ["FakeConsumer"]


class FakeConsumer:
    """The consumer port.

    It does what the real client was measured to do where that hurts: a poll begun in a rebalance blocks until that is over;
    a member that drains too long loses its partitions while it still works on them; positions and pauses are gone after a
    rebalance; an offset outside the log raises at each poll; nothing raises when the brokers are gone.
    """

    def __init__(self, brokers: Brokers, options: GroupOptions, plans: ConsumerPlans) -> None:
        self.options = options
        self.listener: AssignmentListener | None = None
        self.polls = 0
        self.is_stopped = False
        self.is_frozen = False
        """When set, polls give nothing although there is something: a client whose fetcher died."""
        self._brokers = brokers
        self._plans = plans
        self._connection = Connection(brokers)
        self._membership = Membership(self._connection, options, self._take_over)
        self._logs: dict[TopicPartition, AssignedLog] = {}
        self._turns: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)

    # -- what a test sees and does

    @property
    def member_id(self) -> str:
        """Its id in the group, empty when it has none."""
        return self._membership.member_id

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What it believes to be its own."""
        return self._membership.owned

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Where it reads next."""
        return {tp: log.position for tp, log in self._logs.items() if log.position is not None}

    @property
    def paused(self) -> set[TopicPartition]:
        """What it does not fetch."""
        return {tp for tp, log in self._logs.items() if log.is_paused}

    def crash(self) -> None:
        """Its process dies: nothing it does reaches the cluster any more; after its session its partitions move on."""
        self._connection.is_dead = True
        self._membership.halt()

    # -- the port

    async def start(self, listener: AssignmentListener) -> None:
        """Connect, see that every topic is there, and begin to join."""
        self.listener = listener
        await self._connection.connect()
        for topic in self.options.topics:
            await self._connection.ask("topic", lambda topic=topic: self._brokers.describe(topic))  # type: ignore[misc]
        self._membership.start(listener)

    async def poll(self, partition: TopicPartition, *, max_records: int, timeout: timedelta) -> Sequence[RawRecord]:
        """The next records; empty when the time is over, the partition is paused or no broker answers."""
        self.polls += 1
        async with self._turns[partition]:
            self._require_started()
            membership, loop = self._membership, asyncio.get_running_loop()
            epoch, until = membership.epoch, loop.time() + timeout.total_seconds()
            if partition not in membership.sought:
                raise AssignmentLost(f"{partition} has no position in this assignment")
            log = self._logs[partition]
            while True:
                while membership.is_reassigning and not self.is_stopped:
                    await membership.settled.wait(membership.settled.count)
                if epoch != membership.epoch or self.is_stopped:
                    raise AssignmentLost(f"{partition} was reassigned while it was read")
                count = log.ready.count
                records = self._take(log, max_records)
                left = until - loop.time()
                if records or left <= 0:
                    return records
                await log.ready.wait(count, left)
                if loop.time() >= until and epoch != membership.epoch:
                    raise AssignmentLost(f"{partition} was reassigned while it was read")

    def _take(self, log: AssignedLog, max_records: int) -> Sequence[RawRecord]:
        if log.partition in self._plans.poll_faults:
            raise self._plans.poll_faults[log.partition]
        if self.is_frozen:
            return []
        records = log.take(max_records)
        if not records:
            log.fetch_ahead()
        return records

    def pause(self, partition: TopicPartition) -> None:
        """Fetch nothing for it until `resume`."""
        if partition in self._membership.owned and partition in self._logs:
            self._logs[partition].is_paused = True

    def resume(self, partition: TopicPartition) -> None:
        """Fetch for it again."""
        if partition in self._membership.owned and partition in self._logs:
            self._logs[partition].is_paused = False
            self._logs[partition].ready.ring()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read from this offset next. Raises AssignmentLost."""
        self._require_owned([partition])
        self._logs[partition].seek(offset)
        self._membership.sought.add(partition)

    async def position(self, partition: TopicPartition) -> int:
        """The offset that is read next. Raises AssignmentLost."""
        self._require_owned([partition])
        position = self._logs[partition].position
        if position is not None:
            return position
        committed = await self._membership.committed(partition)
        if committed is None:
            raise BrokerUnreachable(f"{partition} has no position")
        return committed[0]

    async def committed(self, partition: TopicPartition) -> tuple[int, str] | None:
        """The committed offset and its metadata; also for partitions of others."""
        self._require_started()
        return await self._membership.committed(partition)

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit next offsets. Raises AssignmentLost, BrokerUnreachable."""
        self._require_owned(offsets)
        for partition, (offset, _) in offsets.items():
            if offset < 0:
                raise ValueError(f"{partition}: {offset} is no offset")
        fault = self._plans.commit_faults.popleft() if self._plans.commit_faults else None
        if fault is not None:
            await asyncio.sleep(0)
            raise fault
        await self._membership.commit(dict(offsets))

    async def beginning_offset(self, partition: TopicPartition) -> int:
        """The first offset of the log."""
        self._require_started()
        return await self._connection.ask("beginning_offset", lambda: self._brokers.readable(partition).start)

    async def end_offset(self, partition: TopicPartition) -> int:
        """The offset after the last record."""
        self._require_started()
        return await self._connection.ask("end_offset", lambda: self._brokers.end(partition))

    async def stop(self) -> None:
        """Leave within a deadline; the listener is not called."""
        if self.is_stopped:
            return
        self.is_stopped = True
        try:
            await self._membership.stop()
        finally:
            for log in self._logs.values():
                log.ready.ring()
                await log.end()

    # -- inside

    def _take_over(self, partitions: Collection[TopicPartition]) -> None:
        """A new assignment: nothing of the last one is left, also of a partition that came straight back."""
        for log in self._logs.values():
            log.forget()
        self._logs = {partition: AssignedLog(self._connection, partition) for partition in partitions}

    def _require_started(self) -> None:
        if self.listener is None or self.is_stopped:
            raise AssignmentLost("the consumer is not started")

    def _require_owned(self, partitions: Collection[TopicPartition]) -> None:
        self._require_started()
        strangers = [partition for partition in partitions if partition not in self._membership.owned]
        if strangers:
            raise AssignmentLost(f"not ours: {', '.join(map(str, sorted(strangers)))}")

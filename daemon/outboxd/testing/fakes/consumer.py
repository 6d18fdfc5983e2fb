"""A cluster in memory as a consumer meets it: logs, committed offsets, groups with eager rebalances, and outages.

It does what a real broker and client were measured to do where that hurts: a poll blocks for a whole rebalance; a member
that drains too long loses its partitions while it still works on them; positions and pauses are gone after a rebalance;
a commit after that is refused; an offset outside the log raises at each poll; nothing raises when the brokers are gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Final

from outboxd.errors import AssignmentLost, BrokerError, BrokerUnreachable, OffsetOutOfRange, TopicUnknown
from outboxd.ports import AssignmentListener, TopicInfo
from outboxd.records import NO_HEADERS, Headers, RawRecord, TimestampType, TopicPartition

__all__ = ["FakeAdmin", "FakeCluster", "FakeConsumer", "FakeGroup", "FakeLog"]

_SHORTEST_WAIT: Final = 1e-6
_ANSWER_DEADLINE: Final = 5.0
"""How long a client waits for a broker that is gone."""


class FakeLog:
    """One partition: records and, where ``None`` stands, control records, which occupy offsets."""

    def __init__(self) -> None:
        self.start = 0
        self.slots: list[RawRecord | None] = []

    @property
    def end(self) -> int:
        """The offset after the last slot."""
        return self.start + len(self.slots)

    def at(self, offset: int) -> RawRecord | None:
        """What stands at an offset of the log."""
        return self.slots[offset - self.start]


class FakeCluster:
    """Topics and groups. Hand it to a pipeline as its broker factory."""

    def __init__(self, topics: Mapping[str, int]) -> None:
        self.logs: dict[TopicPartition, FakeLog] = {}
        for topic, partitions in topics.items():
            self.create(topic, partitions)
        self.committed: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
        self.commits: list[tuple[str, TopicPartition, int]] = []
        """Every accepted commit, in order."""
        self.groups: dict[str, FakeGroup] = {}
        self.is_down = False
        self.commit_faults: deque[Exception | None] = deque()
        """What the next commits raise; None lets one through."""
        self.poll_faults: dict[TopicPartition, Exception] = {}
        """What polling a partition raises, until it is taken out."""
        self.consumers: list[FakeConsumer] = []
        self.changed = asyncio.Event()

    # -- what a test does to it ----------------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int) -> None:
        """Make a topic, or give it more partitions."""
        for partition in range(partitions):
            self.logs.setdefault(TopicPartition(topic, partition), FakeLog())

    def produce(
        self, topic: str, key: bytes | None, value: bytes | None, *, partition: int = 0, headers: Headers = NO_HEADERS
    ) -> int:
        """Append a record; its offset."""
        log = self.logs[TopicPartition(topic, partition)]
        offset = log.end
        log.slots.append(
            RawRecord(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp=1_700_000_000_000 + offset,
                timestamp_type=TimestampType.CREATE_TIME,
                key=key,
                value=value,
                headers=headers,
            )
        )
        self.notify()
        return offset

    def mark(self, topic: str, partition: int = 0) -> None:
        """Append a control record, such as the end of a transaction."""
        self.logs[TopicPartition(topic, partition)].slots.append(None)
        self.notify()

    def trim(self, tp: TopicPartition, start: int) -> None:
        """Retention removes everything before ``start``."""
        log = self.logs[tp]
        del log.slots[: start - log.start]
        log.start = start
        self.notify()

    def recreate(self, tp: TopicPartition) -> None:
        """The topic was deleted and made again: offsets begin at 0, while the committed ones stay."""
        self.logs[tp] = FakeLog()
        self.notify()

    def offset_of(self, group: str, tp: TopicPartition) -> int | None:
        """The committed offset."""
        found = self.committed.get((group, tp))
        return None if found is None else found[0]

    def notify(self) -> None:
        """Wake whoever waits for something to change."""
        self.changed.set()
        self.changed = asyncio.Event()

    async def answer(self) -> None:
        """Return when the brokers answer; BrokerUnreachable when they do not within the deadline."""
        if not self.is_down:
            return
        try:
            async with asyncio.timeout(_ANSWER_DEADLINE):
                while self.is_down:
                    await self.changed.wait()
        except TimeoutError as error:
            raise BrokerUnreachable("no broker answers") from error

    # -- what a pipeline asks of it ------------------------------------------------------------------------------------

    def consumer(
        self,
        *,
        topics: Sequence[str],
        group: str,
        session_timeout: timedelta,
        rebalance_timeout: timedelta,
        max_poll_interval: timedelta,
        instance_id: str | None,
    ) -> FakeConsumer:
        """A new, unstarted member of the group; ``max_poll_interval`` and ``instance_id`` mean nothing here."""
        del max_poll_interval, instance_id
        joined = self.groups.setdefault(group, FakeGroup(self, group))
        member = FakeConsumer(self, joined, topics, session_timeout.total_seconds(), rebalance_timeout.total_seconds())
        self.consumers.append(member)
        return member

    def admin(self) -> FakeAdmin:
        """A client for questions."""
        return FakeAdmin(self)


class FakeAdmin:
    """Questions about the cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    async def cluster_id(self) -> str:
        """The same for each cluster in memory."""
        await self._cluster.answer()
        return "cluster-in-memory"

    async def topic(self, name: str) -> TopicInfo:
        """How many partitions the topic has."""
        await self._cluster.answer()
        partitions = sum(tp.topic == name for tp in self._cluster.logs)
        if not partitions:
            raise TopicUnknown(f"topic {name} does not exist", topic=name)
        return TopicInfo(name=name, partitions=partitions)

    async def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Records from an offset on."""
        await self._cluster.answer()
        log = self._cluster.logs[partition]
        slots = (log.at(at) for at in range(max(offset, log.start), log.end))
        return [record for record in slots if record is not None][:limit]

    async def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        """The end of each partition."""
        await self._cluster.answer()
        return {tp: log.end for tp, log in self._cluster.logs.items() if tp.topic == topic}

    async def close(self) -> None:
        """Nothing is open."""


class FakeGroup:
    """Members and who owns what. Rebalances are eager: everybody gives everything up, then partitions are dealt anew."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self._cluster = cluster
        self.name = name
        self.members: list[FakeConsumer] = []
        self.generation = 0
        self.settled = asyncio.Event()
        self.settled.set()
        self._one_at_a_time = asyncio.Lock()

    async def rebalance(self) -> None:
        """Revoke, wait for each member up to its rebalance timeout, then assign.

        A member that is not done by then keeps draining while its partitions belong to others already.
        """
        async with self._one_at_a_time:
            self.settled.clear()
            drains = {m: asyncio.ensure_future(m.give_up()) for m in self.members if m.assigned_generation}
            if drains:
                await asyncio.wait(drains.values(), timeout=max(m.rebalance_timeout for m in drains))
            self.generation += 1
            alive = [m for m in self.members if not m.is_crashed]
            present = [m for m in alive if m not in drains or drains[m].done()]
            late = [m for m in alive if m not in present]
            self.members = present
            for member, partitions in self._deal(present).items():
                await member.receive(partitions, self.generation)
            self.settled.set()
            self._cluster.notify()
        for member in late:
            await drains[member]
            self.members.append(member)
            member.rejoining = asyncio.ensure_future(self.rebalance())

    def _deal(self, members: Sequence[FakeConsumer]) -> dict[FakeConsumer, list[TopicPartition]]:
        dealt: dict[FakeConsumer, list[TopicPartition]] = {member: [] for member in members}
        for index, tp in enumerate(sorted(self._cluster.logs)):
            wanting = [member for member in members if tp.topic in member.topics]
            if wanting:
                dealt[wanting[(index + self.generation) % len(wanting)]].append(tp)
        return dealt


class FakeConsumer:
    """A member of a group: the `ConsumerPort`."""

    def __init__(
        self, cluster: FakeCluster, group: FakeGroup, topics: Sequence[str], session_timeout: float, rebalance: float
    ) -> None:
        self._cluster = cluster
        self._group = group
        self.topics = topics
        self._session_timeout = session_timeout
        self.rebalance_timeout = rebalance
        self._listener: AssignmentListener | None = None
        self.assignment: set[TopicPartition] = set()
        self.assigned_generation = 0
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.polls = 0
        self.is_stopped = False
        self.is_crashed = False
        self.is_frozen = False
        """When set, polls give nothing although there is something: a client whose fetcher died."""
        self.rejoining: asyncio.Future[None] | None = None

    # -- the group's side ----------------------------------------------------------------------------------------------

    async def give_up(self) -> None:
        """Everything is revoked; the listener's failures are swallowed, as the real client does."""
        if self._listener is None or self.is_crashed:
            return
        try:
            await self._listener.revoked(frozenset(self.assignment))
        except Exception:  # noqa: BLE001 - what the client does; the pipeline must not rely on more
            return

    async def receive(self, partitions: Collection[TopicPartition], generation: int) -> None:
        """Partitions with no position and no pause."""
        self.assignment = set(partitions)
        self.assigned_generation = generation
        self.positions.clear()
        self.paused.clear()
        if self._listener is not None and not self.is_crashed:
            await self._listener.assigned(frozenset(partitions))

    def crash(self) -> None:
        """The process dies: nothing it does reaches the cluster any more; after its session its partitions move on."""
        self.is_crashed = True
        self._cluster.notify()

    async def expire(self) -> None:
        """The session of a crashed member is over."""
        if self in self._group.members:
            self._group.members.remove(self)
            await self._group.rebalance()

    # -- the port ------------------------------------------------------------------------------------------------------

    async def start(self, listener: AssignmentListener) -> None:
        """Join; returns after the first rebalance."""
        await self._reach()
        for topic in self.topics:
            if not any(tp.topic == topic for tp in self._cluster.logs):
                raise TopicUnknown(f"topic {topic} does not exist", topic=topic)
        self._listener = listener
        self._group.members.append(self)
        await self._group.rebalance()

    async def poll(self, partition: TopicPartition, *, max_records: int, timeout: timedelta) -> Sequence[RawRecord]:
        """The next records; empty when the time is over, the partition is paused or no broker answers."""
        self.polls += 1
        give_up = asyncio.get_running_loop().time() + timeout.total_seconds()
        while True:
            await self._group.settled.wait()
            records = self._take(partition, max_records)
            left = give_up - asyncio.get_running_loop().time()
            if records or left <= _SHORTEST_WAIT:
                return records
            try:
                async with asyncio.timeout(left):
                    await self._cluster.changed.wait()
            except TimeoutError:
                continue

    def pause(self, partition: TopicPartition) -> None:
        """See `ConsumerPort.pause`."""
        self.paused.add(partition)

    def resume(self, partition: TopicPartition) -> None:
        """See `ConsumerPort.resume`."""
        self.paused.discard(partition)
        self._cluster.notify()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """See `ConsumerPort.seek`."""
        self._own(partition)
        self.positions[partition] = offset

    async def position(self, partition: TopicPartition) -> int:
        """See `ConsumerPort.position`."""
        self._own(partition)
        if partition not in self.positions:
            raise BrokerError(f"{partition} has no position")
        return self.positions[partition]

    async def committed(self, partition: TopicPartition) -> tuple[int, str] | None:
        """See `ConsumerPort.committed`; also for partitions of others."""
        await self._reach()
        return self._cluster.committed.get((self._group.name, partition))

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """See `ConsumerPort.commit`; refused as a whole when one partition is not ours in this generation."""
        await self._reach()
        await asyncio.sleep(0)
        fault = self._cluster.commit_faults.popleft() if self._cluster.commit_faults else None
        if fault is not None:
            raise fault
        is_member = self in self._group.members and self.assigned_generation == self._group.generation
        if not is_member or not offsets.keys() <= self.assignment:
            raise AssignmentLost(f"the group is at generation {self._group.generation}")
        for tp, (offset, metadata) in offsets.items():
            self._cluster.committed[self._group.name, tp] = (offset, metadata)
            self._cluster.commits.append((self._group.name, tp, offset))

    async def beginning_offset(self, partition: TopicPartition) -> int:
        """See `ConsumerPort.beginning_offset`."""
        await self._reach()
        return self._cluster.logs[partition].start

    async def end_offset(self, partition: TopicPartition) -> int:
        """See `ConsumerPort.end_offset`."""
        await self._reach()
        return self._cluster.logs[partition].end

    async def stop(self) -> None:
        """Leave; the others get the partitions. The listener is not called."""
        self.is_stopped = True
        if self in self._group.members and not self.is_crashed:
            self._group.members.remove(self)
            self.assignment = set()
            if not self._cluster.is_down:
                self.rejoining = asyncio.ensure_future(self._group.rebalance())
        self._cluster.notify()

    async def _reach(self) -> None:
        if self.is_crashed:
            raise BrokerUnreachable("this process is dead")
        await self._cluster.answer()

    def _own(self, partition: TopicPartition) -> None:
        if partition not in self.assignment:
            raise AssignmentLost(f"{partition} is not assigned")

    def _take(self, partition: TopicPartition, max_records: int) -> list[RawRecord]:
        self._own(partition)
        cluster = self._cluster
        if cluster.is_down or self.is_crashed or self.is_frozen or partition in self.paused:
            return []
        if partition in cluster.poll_faults:
            raise cluster.poll_faults[partition]
        log = cluster.logs[partition]
        if partition not in self.positions:
            raise BrokerError(f"{partition} has no position")
        position = self.positions[partition]
        if not log.start <= position <= log.end:
            raise OffsetOutOfRange(f"offset {position} of {partition} is outside [{log.start}, {log.end}]")
        records: list[RawRecord] = []
        while position < log.end and len(records) < max_records:
            record = log.at(position)
            position += 1
            if record is not None:
                records.append(record)
        self.positions[partition] = position
        return records

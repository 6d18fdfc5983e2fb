"""The words in which stories about Kafka are told; `kafka_double.py` and `kafka_real.py` understand them."""

from __future__ import annotations

import asyncio
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Protocol, Self

import pytest

from outboxd.errors import AssignmentLost, BrokerError
from outboxd.ports import Admin, Batch, BrokerFactory, ConsumerPort, OutboundRecord, RelayProducer, Sender
from outboxd.records import NO_HEADERS, RawRecord, TopicPartition

__all__ = ["Member", "World", "Writes", "an_id", "breaks", "others", "rows", "tally"]


class Writes(Protocol):
    """A producer object, as far as building and sending go."""

    def build(self, records: Sequence[OutboundRecord]) -> Batch: ...

    async def send(self, partition: TopicPartition, batch: Any) -> int: ...


class World(ABC):
    """The words of a story. Everything that it makes ends with it."""

    def __init__(self, brokers: BrokerFactory) -> None:
        self.brokers = brokers
        self._producers: list[RelayProducer] = []
        self._senders: list[Sender] = []
        self._admins: list[Admin] = []
        self._members: list[Member] = []

    # -- clients

    def producer(self, identity: str | None = None, *, deadline: float = 10) -> RelayProducer:
        """A producer object, not open yet."""
        made = self.brokers.relay_producer(identity or an_id(), compression=None, deadline=timedelta(seconds=deadline))
        self._producers.append(made)
        return made

    async def opened(self, identity: str | None = None, *, deadline: float = 10) -> RelayProducer:
        """A producer object with an epoch, that has fenced nothing."""
        made = self.producer(identity, deadline=deadline)
        assert await made.open([]) == frozenset()
        return made

    def sender(self, *, deadline: float = 10) -> Sender:
        """A sender."""
        made = self.brokers.sender(deadline=timedelta(seconds=deadline))
        self._senders.append(made)
        return made

    def admin(self) -> Admin:
        """A client for questions."""
        made = self.brokers.admin()
        self._admins.append(made)
        return made

    def member(self, *topics: str, group: str | None = None, **options: Any) -> Member:
        """A member of a group, by default that of the first topic's name; it has not joined."""
        made = Member(self.brokers, topics, group or topics[0], **options)
        self._members.append(made)
        return made

    @abstractmethod
    async def twins(self) -> tuple[Writes, Writes]:
        """Two producer objects with one and the same producer id and epoch, which must never be."""

    # -- what stands in topics

    @abstractmethod
    async def topic(
        self,
        partitions: int = 1,
        *,
        max_message_bytes: int | None = None,
        before: int | None = None,
        after: int | None = None,
        name: str | None = None,
    ) -> str:
        """Make a topic that no other test knows; its name."""

    @abstractmethod
    async def delete_topic(self, name: str) -> None:
        """Delete it; returns when nobody sees it any more."""

    @abstractmethod
    async def add_partitions(self, name: str, total: int) -> None:
        """Give it more partitions."""

    @abstractmethod
    async def trim(self, partition: TopicPartition, start: int) -> None:
        """Remove everything before an offset."""

    @abstractmethod
    async def append_undecodable(self, partition: TopicPartition) -> None:
        """Append a record whose header name is not UTF-8."""

    async def fill(self, topic: str, count: int, *, partition: int = 0, at_once: int = 1_000) -> None:
        """Append records with the values 0, 1, ... as somebody else's producer does."""
        producer = await self.opened()
        for first in range(0, count, at_once):
            numbers = range(first, min(first + at_once, count))
            await producer.send(TopicPartition(topic, partition), producer.build(rows(*(b"%d" % n for n in numbers))))
        await producer.abandon()

    async def mark(self, *partitions: TopicPartition) -> None:
        """Append a control record to each."""
        await self.producer().open(partitions)

    async def log(self, topic: str, partition: int = 0) -> Sequence[RawRecord]:
        """Everything that stands in a partition."""
        admin = self.admin()
        found: list[RawRecord] = []
        while page := await admin.read(TopicPartition(topic, partition), found[-1].offset + 1 if found else 0, 10_000):
            found += page
        return found

    async def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values that stand in a partition."""
        return [record.value for record in await self.log(topic, partition)]

    # -- what befalls the cluster and its clients

    @abstractmethod
    def freeze(self) -> None:
        """The broker stops in the middle of everything: connections stay, nothing is answered."""

    @abstractmethod
    def thaw(self) -> None:
        """It goes on."""

    @abstractmethod
    async def kill(self) -> None:
        """The broker is gone at once."""

    @abstractmethod
    async def restart(self) -> None:
        """It is there again, with what it had stored."""

    @abstractmethod
    async def crash(self, member: Member) -> None:
        """The member's process ends without a word to the group."""

    @abstractmethod
    def stand_still(self, seconds: float) -> None:
        """This process does nothing for so long; its connections stay."""

    async def until(self, is_so: Callable[[], object], seconds: float = 30.0) -> None:
        """Let time pass until it is so."""
        async with asyncio.timeout(seconds):
            while not is_so():
                await asyncio.sleep(0.02)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        """Tell a story in it; then everything that was made ends, and nothing of it runs on."""
        try:
            yield self
        finally:
            self.thaw()
            await self.close()
        assert others() == [], "a client left tasks behind"

    async def close(self) -> None:
        """End every client."""
        for member in self._members:
            await member.end()
        for producer in self._producers:
            await producer.abandon()
        for sender in self._senders:
            await sender.close()
        for admin in self._admins:
            await admin.close()


class Member:
    """A member of a group that reads from what is committed on, and remembers what it is told and given."""

    def __init__(
        self,
        brokers: BrokerFactory,
        topics: Sequence[str],
        group: str,
        *,
        instance_id: str | None = None,
        session: float = 6.0,
        rebalance: float = 15.0,
        seeks: bool = True,
    ) -> None:
        self.port: ConsumerPort = brokers.consumer(
            topics=topics,
            group=group,
            session_timeout=timedelta(seconds=session),
            rebalance_timeout=timedelta(seconds=rebalance),
            max_poll_interval=timedelta(seconds=60),
            instance_id=instance_id,
        )
        self.owned: list[TopicPartition] = []
        self.done: dict[TopicPartition, int] = {}
        self.seen: list[RawRecord] = []
        self.told: list[tuple[str, list[TopicPartition]]] = []
        """What the listener was told, in order."""
        self.refusals: list[BrokerError] = []
        self.drain: Callable[[], Coroutine[Any, Any, None]] = self._nothing
        """What it does while its partitions are taken away."""
        self.fails = False
        """When set, the listener raises whatever it is told."""
        self._seeks = seeks
        self._has_ended = False

    async def _nothing(self) -> None:
        return None

    # -- the listener

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.told.append(("revoked", sorted(partitions)))
        try:
            if partitions:
                await self.drain()
        finally:
            self.owned = []
            self.done = {}
        if self.fails:
            raise ValueError("a listener that fails")

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        if self._seeks:
            for partition in partitions:
                committed = await self.port.committed(partition)
                self.port.seek(partition, 0 if committed is None else committed[0])
        self.owned = sorted(partitions)
        self.told.append(("assigned", sorted(partitions)))
        if self.fails:
            raise ValueError("a listener that fails")

    def refused(self, error: BrokerError) -> None:
        self.refusals.append(error)

    # -- what it does

    async def start(self) -> None:
        await self.port.start(self)

    async def join(self, seconds: float = 30.0) -> None:
        """Start, and wait for partitions."""
        await self.start()
        async with asyncio.timeout(seconds):
            while not self.owned:
                await asyncio.sleep(0.02)

    async def commit(self) -> None:
        """Commit what was seen."""
        offsets = {partition: (offset, "") for partition, offset in self.done.items() if partition in self.owned}
        if offsets:
            await self.port.commit(offsets)

    async def poll(self, partition: TopicPartition, *, most: int = 50, seconds: float = 0.1) -> Sequence[RawRecord]:
        """One poll."""
        return await self.port.poll(partition, max_records=most, timeout=timedelta(seconds=seconds))

    async def poll_on(self, partition: TopicPartition, *, most: int = 50) -> Sequence[RawRecord]:
        """Poll until something comes, be it an error."""
        async with asyncio.timeout(15):
            while not (records := await self.poll(partition, most=most)):
                pass
            return records

    async def step(self, most: int = 50) -> int:
        """One poll of each partition; how many records came."""
        count = 0
        for partition in list(self.owned):
            try:
                records = await self.poll(partition, most=most)
            except AssignmentLost:
                continue
            count += len(records)
            self.seen += records
            if records and partition in self.owned:
                self.done[partition] = records[-1].offset + 1
        if not self.owned:
            await asyncio.sleep(0.05)
        return count

    async def until_seen(self, count: int, seconds: float = 30.0) -> None:
        """Poll until so many records were seen."""
        async with asyncio.timeout(seconds):
            while len(self.seen) < count:
                await self.step()

    async def end(self) -> None:
        """Leave the group, once."""
        if not self._has_ended:
            self._has_ended = True
            await self.port.stop()

    def forget(self) -> None:
        """It has ended otherwise."""
        self._has_ended = True


breaks = pytest.mark.parametrize("kafka", ["double", "fragile broker"], indirect=True)
"""For stories that freeze or kill the broker: they get one that no other suite uses."""


def rows(*values: bytes | None, key: bytes | None = b"k", timestamp: int | None = None) -> list[OutboundRecord]:
    """Records of one key."""
    return [OutboundRecord(key=key, value=value, headers=NO_HEADERS, timestamp=timestamp) for value in values]


def others() -> list[asyncio.Task[Any]]:
    """The tasks beside the story's own."""
    return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


def an_id() -> str:
    """A transactional id that nobody else has."""
    return f"outboxd.test.{uuid.uuid4().hex}"


def tally(records: Sequence[RawRecord]) -> Mapping[TopicPartition, list[int]]:
    """The offsets of each partition, in the order of the records."""
    found: dict[TopicPartition, list[int]] = {}
    for record in records:
        found.setdefault(TopicPartition(record.topic, record.partition), []).append(record.offset)
    return found

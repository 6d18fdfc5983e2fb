"""A member of a group on a real broker: positions are ours, commits are one past the last, nothing is lost in a rebalance."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from datetime import timedelta

import pytest

from outboxd.errors import AssignmentLost, BrokerError, BrokerUnreachable, OffsetOutOfRange, TopicUnknown
from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.consumer import KafkaConsumer
from outboxd.ports import OutboundRecord
from outboxd.records import NO_HEADERS, RawRecord, TopicPartition
from tests.conftest import StackFactory, TopicFactory
from tests.integration.kafka.conftest import MakeProducer, broker_at


class Member:
    """A consumer that handles a record by remembering it, and commits when it is told to."""

    def __init__(
        self,
        broker: KafkaBroker,
        topic: str,
        group: str,
        *,
        instance_id: str | None = None,
        session: timedelta = timedelta(seconds=6),
    ) -> None:
        self.consumer: KafkaConsumer = broker.consumer(
            topics=[topic],
            group=group,
            session_timeout=session,
            rebalance_timeout=timedelta(seconds=15),
            max_poll_interval=timedelta(seconds=60),
            instance_id=instance_id,
        )
        self.owned: set[TopicPartition] = set()
        self.done: dict[TopicPartition, int] = {}
        self.seen: list[RawRecord] = []
        self.revocations = 0
        self.refusals: list[BrokerError] = []

    async def start(self) -> None:
        await self.consumer.start(self)

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        self.revocations += 1
        await self.commit()
        self.owned = set()
        self.done = {}

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            committed = await self.consumer.committed(partition)
            self.consumer.seek(partition, 0 if committed is None else committed[0])
        self.owned = set(partitions)

    def refused(self, error: BrokerError) -> None:
        self.refusals.append(error)

    async def commit(self) -> None:
        offsets = {partition: (offset, "") for partition, offset in self.done.items() if partition in self.owned}
        if offsets:
            await self.consumer.commit(offsets)

    async def step(self, max_records: int = 50) -> int:
        """One poll of each partition; how many records came."""
        count = 0
        for partition in sorted(self.owned):
            try:
                records = await self.consumer.poll(
                    partition, max_records=max_records, timeout=timedelta(milliseconds=100)
                )
            except AssignmentLost:
                continue
            count += len(records)
            self.seen += records
            if records and partition in self.owned:
                self.done[partition] = records[-1].offset + 1
        if not self.owned:
            await asyncio.sleep(0.1)
        return count

    async def until_seen(self, count: int, seconds: float = 30) -> None:
        async with asyncio.timeout(seconds):
            while len(self.seen) < count:
                await self.step()


async def fill(broker: KafkaBroker, make_producer: MakeProducer, topic: str, partitions: int, count: int) -> None:
    producer = make_producer(f"outboxd.fill.{uuid.uuid4().hex}", at=broker)
    await producer.open([])
    for number in range(partitions):
        rows = [OutboundRecord(key=b"k", value=b"%d" % index, headers=NO_HEADERS) for index in range(count)]
        await producer.send(TopicPartition(topic, number), producer.build(rows))


@pytest.mark.fixes("B010")
async def test_after_a_clean_stop_nothing_comes_again(
    broker: KafkaBroker, topic: str, make_producer: MakeProducer
) -> None:
    await fill(broker, make_producer, topic, 1, 3)
    partition = TopicPartition(topic, 0)
    member = Member(broker, topic, topic)
    await member.start()
    await member.until_seen(3)
    await member.commit()
    assert await member.consumer.committed(partition) == (3, "")
    assert await member.consumer.end_offset(partition) == 3
    await member.consumer.stop()
    again = Member(broker, topic, topic)
    await again.start()
    async with asyncio.timeout(20):
        while not again.owned:
            await asyncio.sleep(0.05)
    assert await again.step() == 0
    assert await again.consumer.position(partition) == 3
    await again.consumer.stop()


@pytest.mark.fixes("B002")
async def test_members_come_and_go_and_no_record_is_lost(
    broker: KafkaBroker, topic_factory: TopicFactory, make_producer: MakeProducer
) -> None:
    topic = await topic_factory(partitions=4)
    await fill(broker, make_producer, topic, 4, 500)
    first, second = Member(broker, topic, topic), Member(broker, topic, topic)
    await first.start()
    await first.until_seen(200)
    await second.start()

    async def both() -> None:
        async with asyncio.timeout(40):
            while len({(record.partition, record.offset) for record in first.seen + second.seen}) < 2000:
                await asyncio.gather(first.step(20), second.step(20))

    await both()
    assert second.seen
    assert first.revocations >= 1
    # In each member each partition's offsets rise: what a rebalance takes away is read again, never skipped.
    await first.commit()
    with pytest.raises(AssignmentLost):
        await first.consumer.commit({TopicPartition(topic, 99): (1, "")})
    taken = next(iter(second.owned))
    with pytest.raises(AssignmentLost):
        await first.consumer.commit({taken: (1, "")})
    await first.consumer.stop()
    await second.consumer.stop()


@pytest.mark.fixes("B005")
async def test_many_short_polls_do_not_end_the_fetching(
    broker: KafkaBroker, topic: str, make_producer: MakeProducer
) -> None:
    member = Member(broker, topic, topic)
    await member.start()
    async with asyncio.timeout(20):
        while not member.owned:
            await asyncio.sleep(0.05)
    partition = TopicPartition(topic, 0)
    for _ in range(200):
        await member.consumer.poll(partition, max_records=10, timeout=timedelta(milliseconds=5))
    await fill(broker, make_producer, topic, 1, 10)
    await member.until_seen(10)
    await member.consumer.stop()


async def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was(
    broker: KafkaBroker, topic: str, make_producer: MakeProducer
) -> None:
    await fill(broker, make_producer, topic, 1, 20)
    member = Member(broker, topic, topic)
    await member.start()
    async with asyncio.timeout(20):
        while len(member.seen) < 5:
            await member.step(5)
    partition = TopicPartition(topic, 0)
    member.consumer.pause(partition)
    count = len(member.seen)
    for _ in range(5):
        assert await member.step() == 0
    member.consumer.resume(partition)
    await member.until_seen(20)
    assert [record.offset for record in member.seen] == list(range(20))
    assert count < 20
    await member.consumer.stop()


async def test_an_offset_that_is_not_in_the_log_is_told(
    broker: KafkaBroker, topic: str, make_producer: MakeProducer
) -> None:
    await fill(broker, make_producer, topic, 1, 3)
    member = Member(broker, topic, topic)
    await member.start()
    await member.until_seen(3)
    partition = TopicPartition(topic, 0)
    member.consumer.seek(partition, 100)

    async def read_on() -> None:
        async with asyncio.timeout(10):
            while True:
                await member.consumer.poll(partition, max_records=10, timeout=timedelta(milliseconds=100))

    with pytest.raises(OffsetOutOfRange):
        await read_on()
    member.consumer.seek(partition, 0)
    await member.until_seen(6)
    await member.consumer.stop()


async def test_a_topic_that_is_not_there_is_told_at_once(broker: KafkaBroker) -> None:
    member = Member(broker, f"missing-{uuid.uuid4().hex}", "g")
    async with asyncio.timeout(10):
        with pytest.raises(TopicUnknown):
            await member.start()
    await member.consumer.stop()


@pytest.mark.fixes("B007")
async def test_a_consumer_without_its_broker_ends_in_time(
    stack_factory: StackFactory, make_producer: MakeProducer
) -> None:
    stack = await stack_factory(postgres=False)
    await stack.create_topic("t")
    broker = broker_at(stack.bootstrap_servers)
    await fill(broker, make_producer, "t", 1, 3)
    member = Member(broker, "t", "g")
    await member.start()
    await member.until_seen(3)
    await stack.kafka.kill()
    async with asyncio.timeout(25):
        with pytest.raises((BrokerUnreachable, AssignmentLost)):
            await member.consumer.commit({TopicPartition("t", 0): (3, "")})
        await member.consumer.stop()
    assert {task for task in asyncio.all_tasks() if "aiokafka" in repr(task.get_coro())} == set()


async def test_a_reader_finds_what_lies_behind_an_offset_and_nothing_behind_the_end(
    broker: KafkaBroker, topic: str, make_producer: MakeProducer
) -> None:
    partition = TopicPartition(topic, 0)
    await fill(broker, make_producer, topic, 1, 10)
    fenced = make_producer(f"outboxd.fence.{uuid.uuid4().hex}")
    await fenced.open([partition])  # leaves a marker, which takes an offset
    admin = broker.admin()
    try:
        assert await admin.end_offsets(topic) == {partition: 11}
        assert [record.offset for record in await admin.read(partition, 7, 2)] == [7, 8]
        assert [record.offset for record in await admin.read(partition, 9, 100)] == [9]
        assert await admin.read(partition, 10, 100) == ()
        assert await admin.read(partition, 11, 100) == ()
        assert len(await admin.cluster_id()) > 10
        with pytest.raises(TopicUnknown):
            await admin.read(TopicPartition("there-is-no-such-topic", 0), 0, 1)
    finally:
        await admin.close()


async def test_a_group_that_never_takes_the_member_is_told(broker: KafkaBroker, topic: str) -> None:
    member = Member(broker, topic, topic, session=timedelta(milliseconds=100))  # below the broker's minimum
    await member.start()
    async with asyncio.timeout(20):
        while not member.refusals:
            await asyncio.sleep(0.05)
    assert "InvalidSessionTimeout" in member.refusals[0].message
    await member.consumer.stop()

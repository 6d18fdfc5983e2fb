"""The relay's producer on a real broker: atomic batches, epochs, fences, and outcomes that are unknown."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Sequence
from datetime import timedelta

import pytest

from outboxd.errors import (
    ProducerFenced,
    ProducerWedged,
    RecordRejected,
    SendOutcomeUnknown,
    TopicUnknown,
)
from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.fencing import Epoch
from outboxd.kafka.idempotent import IdempotentProducer
from outboxd.kafka.security import ClientOptions
from outboxd.ports import OutboundRecord
from outboxd.records import NO_HEADERS, Headers, RawRecord, TopicPartition
from tests.conftest import StackFactory, TopicFactory
from tests.integration.kafka.conftest import MakeProducer, broker_at


def records(*values: bytes | None, key: bytes | None = b"k") -> list[OutboundRecord]:
    return [OutboundRecord(key=key, value=value, headers=NO_HEADERS) for value in values]


def an_id() -> str:
    return f"outboxd.test.{uuid.uuid4().hex}"


async def values(broker: KafkaBroker, partition: TopicPartition) -> list[bytes | None]:
    return [record.value for record in await everything(broker, partition)]


async def everything(broker: KafkaBroker, partition: TopicPartition) -> Sequence[RawRecord]:
    admin = broker.admin()
    try:
        return await admin.read(partition, 0, 10_000)
    finally:
        await admin.close()


async def test_batches_are_written_whole_in_order_and_byte_for_byte(
    broker: KafkaBroker, topic: str, make_producer: MakeProducer
) -> None:
    producer = make_producer(an_id())
    assert await producer.open([]) == frozenset()
    partition = TopicPartition(topic, 0)
    headers = Headers([("a", b"1"), ("a", b"2"), ("nul", None), ("bin", b"\xc3\x28"), ("", b"")])
    sent = [
        OutboundRecord(key=b"\x83\xff", value=b"", headers=headers, timestamp=1_700_000_000_123),
        OutboundRecord(key=b"", value=None, headers=NO_HEADERS, timestamp=0),
        OutboundRecord(key=None, value=b"v", headers=NO_HEADERS, timestamp=None),
    ]
    assert await producer.send(partition, producer.build(sent)) == 0
    assert await producer.send(partition, producer.build(records(b"next"))) == 3
    assert await producer.end_offset(partition) == 4
    first, second, third, fourth = await everything(broker, partition)
    assert (first.key, first.value, first.headers, first.timestamp) == (b"\x83\xff", b"", headers, 1_700_000_000_123)
    assert (second.key, second.value, second.timestamp) == (b"", None, 0)
    assert (third.key, third.value) == (None, b"v")
    assert fourth.value == b"next"


@pytest.mark.fixes("B020")
async def test_the_partition_of_a_key_is_the_java_clients(
    topic_factory: TopicFactory, make_producer: MakeProducer
) -> None:
    producer = make_producer(an_id())
    await producer.open([])
    info = await producer.topic(await topic_factory(partitions=6))
    assert producer.partition_for(info, b"a", 0) == 4
    assert producer.partition_for(info, b"", 5) == 3  # an empty key is a key
    assert [producer.partition_for(info, None, spread) for spread in (0, 5, 6)] == [0, 5, 0]


async def test_an_older_producer_is_refused_everywhere_once_a_newer_one_has_fenced(
    broker: KafkaBroker, topic_factory: TopicFactory, make_producer: MakeProducer
) -> None:
    topic = await topic_factory(partitions=3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    identity = an_id()
    older, newer = make_producer(identity), make_producer(identity)
    await older.open([])
    await older.send(partitions[0], older.build(records(b"old")))
    missing = TopicPartition("there-is-no-such-topic", 0)
    assert await newer.open([*partitions, missing]) == {missing}
    for partition in partitions:  # the newer one has written to none of them
        with pytest.raises(ProducerFenced):
            await older.send(partition, older.build(records(b"stale")))
    await newer.send(partitions[0], newer.build(records(b"new")))
    assert await values(broker, partitions[0]) == [b"old", b"new"]
    assert await values(broker, partitions[1]) == []


async def test_every_producer_object_has_an_epoch_of_its_own(
    kafka_bootstrap: str, broker: KafkaBroker, topic: str, make_producer: MakeProducer
) -> None:
    partition = TopicPartition(topic, 0)
    identity = an_id()
    for number in range(3):
        producer = make_producer(identity)
        await producer.open([])
        assert await producer.send(partition, producer.build(records(b"%d" % number))) == number
        await producer.abandon()
    assert await values(broker, partition) == [b"0", b"1", b"2"]


async def test_a_pair_of_id_and_epoch_that_is_used_twice_is_acknowledged_without_being_written(
    kafka_bootstrap: str, broker: KafkaBroker, topic: str
) -> None:
    # Why every object needs an epoch of its own: the broker takes the second object's sequence 0 for a repeat.
    options = ClientOptions(bootstrap_servers=(kafka_bootstrap,))
    partition = TopicPartition(topic, 0)
    first = IdempotentProducer(options, compression=None, deadline=timedelta(seconds=10))
    from outboxd.kafka.fencing import take_epoch

    pair = await first.open(lambda client: take_epoch(client, an_id(), [], seconds=10))
    second = IdempotentProducer(options, compression=None, deadline=timedelta(seconds=10))

    async def same(client: object) -> Epoch:
        return pair

    try:
        await first.send(partition, first.build(records(b"written")))
        await second.open(same)
        await second.send(partition, second.build(records(b"lost!!!")))
    finally:
        await first.abandon()
        await second.abandon()
    assert await values(broker, partition) == [b"written"]


async def test_an_unknown_topic_is_told_quickly_and_not_made(broker: KafkaBroker, make_producer: MakeProducer) -> None:
    producer = make_producer(an_id())
    await producer.open([])
    name = f"missing-{uuid.uuid4().hex}"
    async with asyncio.timeout(5):
        with pytest.raises(TopicUnknown, match=name):
            await producer.topic(name)
        with pytest.raises(TopicUnknown):
            await producer.send(TopicPartition(name, 0), producer.build(records(b"v")))


async def test_a_record_that_is_too_large_wedges_its_partition_and_a_new_producer_cures_it(
    broker: KafkaBroker, topic_factory: TopicFactory, make_producer: MakeProducer
) -> None:
    small = TopicPartition(await topic_factory(settings={"max.message.bytes": "2000"}), 0)
    other = TopicPartition(await topic_factory(), 0)
    identity = an_id()
    producer = make_producer(identity)
    await producer.open([])
    await producer.send(small, producer.build(records(b"good")))
    with pytest.raises(RecordRejected):
        await producer.send(small, producer.build(records(os.urandom(5000))))
    with pytest.raises(ProducerWedged):
        await producer.send(small, producer.build(records(b"behind")))
    assert await producer.send(other, producer.build(records(b"fine"))) == 0
    cured = make_producer(identity)
    await cured.open([small])
    await cured.send(small, cured.build(records(b"behind")))
    assert await values(broker, small) == [b"good", b"behind"]


def test_a_header_name_that_is_no_text_is_a_record_error(kafka_bootstrap: str) -> None:
    async def story() -> None:
        producer = broker_at(kafka_bootstrap).relay_producer(an_id(), compression=None, deadline=timedelta(seconds=5))
        await producer.open([])
        try:
            bad = OutboundRecord(key=None, value=None, headers=Headers([("\ud800", b"")]))
            with pytest.raises(RecordRejected):
                producer.build([bad])
            assert producer.build([*records(b"good"), bad]).count == 1
        finally:
            await producer.abandon()

    asyncio.run(story())


@pytest.mark.fixes("B018")
@pytest.mark.fixes("B007")
async def test_a_frozen_broker_makes_the_outcome_unknown_and_holds_nobody_up(
    stack_factory: StackFactory, make_producer: MakeProducer
) -> None:
    stack = await stack_factory(postgres=False)
    await stack.create_topic("t")
    partition = TopicPartition("t", 0)
    broker = broker_at(stack.bootstrap_servers)
    producer = make_producer(an_id(), deadline=3, at=broker)
    await producer.open([])
    await producer.send(partition, producer.build(records(b"before")))
    before = asyncio.all_tasks()
    stack.kafka.pause()
    try:
        began = time.monotonic()
        with pytest.raises(SendOutcomeUnknown):
            await producer.send(partition, producer.build(records(b"unknown")))
        await producer.abandon()
        assert time.monotonic() - began < 20  # aiokafka alone would wait for ever
        # Everything of the client ended with it; only the test's own tasks are left.
        assert {task for task in asyncio.all_tasks() if task.get_name().startswith("kafka")} == set()
        assert len(asyncio.all_tasks()) <= len(before)
    finally:
        stack.kafka.resume()
    after = make_producer(an_id(), at=broker)
    await after.open([])
    await after.send(partition, after.build(records(b"after")))
    assert [value for value in await values(broker, partition) if value != b"unknown"] == [b"before", b"after"]


async def test_the_sender_puts_records_of_one_partition_together_and_refuses_only_the_bad_one(
    broker: KafkaBroker, topic_factory: TopicFactory
) -> None:
    topic = await topic_factory(settings={"max.message.bytes": "20000"})
    sender = broker.sender(deadline=timedelta(seconds=10))
    try:
        sends = [sender.send(topic, key=b"k", value=b"%d" % number, headers=NO_HEADERS) for number in range(200)]
        sends.append(sender.send(topic, key=b"k", value=os.urandom(25_000), headers=NO_HEADERS))
        *positions, refused = await asyncio.gather(*sends, return_exceptions=True)
        assert isinstance(refused, RecordRejected)
        assert sorted(getattr(position, "offset", -1) for position in positions) == list(range(200))
        with pytest.raises(TopicUnknown):
            await sender.send(f"missing-{uuid.uuid4().hex}", key=None, value=b"", headers=NO_HEADERS)
        assert (await sender.send(topic, key=None, value=None, headers=NO_HEADERS)).offset == 200
    finally:
        await sender.close()
    assert {*await values(broker, TopicPartition(topic, 0))} == {None, *(b"%d" % number for number in range(200))}

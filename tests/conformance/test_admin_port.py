"""What the client for questions promises: answers in time, no topic made by asking, reads that leave nothing out."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.errors import BrokerUnreachable, FetchUndecodable, TopicUnknown
from outboxd.records import TopicPartition
from tests.conformance.kafka_world import World, breaks
from tests.conformance.telling import conforms

pytest_plugins = ["tests.conformance.kafka_stages"]


@conforms
async def test_a_cluster_has_one_id(kafka: World) -> None:
    first = await kafka.admin().cluster_id()
    assert len(first) > 10
    assert await kafka.admin().cluster_id() == first


@conforms
async def test_a_topic_is_described_with_its_limits(kafka: World) -> None:
    admin = kafka.admin()
    plain = await admin.topic(await kafka.topic(3))
    assert (plain.partitions, plain.max_message_bytes) == (3, 1_048_588)
    assert (plain.timestamp_before_max, plain.timestamp_after_max) == (None, 3_600_000)
    limited = await admin.topic(await kafka.topic(max_message_bytes=2_000, before=60_000, after=70_000))
    assert (limited.partitions, limited.max_message_bytes) == (1, 2_000)
    assert (limited.timestamp_before_max, limited.timestamp_after_max) == (60_000, 70_000)


@conforms
async def test_what_is_not_there_is_told_and_not_made(kafka: World) -> None:
    topic = await kafka.topic()
    missing = f"{topic}-missing"
    admin = kafka.admin()
    for _ in range(2):
        with pytest.raises(TopicUnknown, match=missing):
            await admin.topic(missing)
    with pytest.raises(TopicUnknown):
        await admin.end_offsets(missing)
    with pytest.raises(TopicUnknown):
        await admin.read(TopicPartition(missing, 0), 0, 1)
    with pytest.raises(TopicUnknown):
        await admin.read(TopicPartition(topic, 1), 0, 1)


@conforms
async def test_a_topic_that_is_made_is_seen_soon_although_it_was_asked_for_before(kafka: World) -> None:
    name = f"{await kafka.topic()}-later"
    admin = kafka.admin()
    with pytest.raises(TopicUnknown):
        await admin.topic(name)
    await kafka.topic(2, name=name)
    await asyncio.sleep(2.5)
    assert (await admin.topic(name)).partitions == 2


@conforms
async def test_a_read_finds_what_lies_from_an_offset_on_and_nothing_from_the_end_on(kafka: World) -> None:
    topic = await kafka.topic(2)
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 10)
    await kafka.mark(partition)  # which takes an offset
    admin = kafka.admin()
    assert await admin.end_offsets(topic) == {partition: 11, TopicPartition(topic, 1): 0}
    assert [record.offset for record in await admin.read(partition, 7, 2)] == [7, 8]
    assert [record.offset for record in await admin.read(partition, 9, 100)] == [9]
    assert list(await admin.read(partition, 10, 100)) == [], "only a marker stands there"
    assert list(await admin.read(partition, 11, 100)) == []
    assert list(await admin.read(partition, 500, 100)) == []
    assert list(await admin.read(TopicPartition(topic, 1), 0, 100)) == []


@conforms
async def test_a_read_passes_over_markers_between_records(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 1)
    await kafka.mark(partition)
    await kafka.mark(partition)
    await kafka.fill(topic, 1)
    admin = kafka.admin()
    found = list(await admin.read(partition, 0, 1))
    assert [record.offset for record in found] == [0]
    assert [record.offset for record in await admin.read(partition, 1, 1)] == [3]


@conforms
async def test_a_read_before_the_logs_start_begins_there(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 10)
    await kafka.trim(partition, 6)
    assert [record.offset for record in await kafka.admin().read(partition, 2, 100)] == [6, 7, 8, 9]


@conforms
async def test_a_read_tells_of_what_it_cannot_decode(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 2)
    await kafka.append_undecodable(partition)
    await kafka.fill(topic, 1)
    admin = kafka.admin()
    with pytest.raises(FetchUndecodable):
        await admin.read(partition, 2, 1)
    with pytest.raises(FetchUndecodable):
        await admin.read(partition, 0, 100)
    assert [record.offset for record in await admin.read(partition, 0, 2)] == [0, 1]
    assert [record.offset for record in await admin.read(partition, 3, 1)] == [3]


@breaks
@conforms
async def test_a_frozen_broker_is_told_in_time_and_the_client_is_of_use_afterwards(kafka: World) -> None:
    topic = await kafka.topic()
    admin = kafka.admin()
    await admin.end_offsets(topic)
    kafka.freeze()
    async with asyncio.timeout(15):
        with pytest.raises(BrokerUnreachable):
            await admin.end_offsets(topic)
    kafka.thaw()
    await asyncio.sleep(0.5)
    assert await admin.end_offsets(topic) == {TopicPartition(topic, 0): 0}


@breaks
@conforms
async def test_a_client_that_found_no_broker_at_first_finds_it_later(kafka: World) -> None:
    topic = await kafka.topic()
    kafka.freeze()
    admin = kafka.admin()
    async with asyncio.timeout(20):
        with pytest.raises(BrokerUnreachable):
            await admin.topic(topic)
    kafka.thaw()
    assert (await admin.topic(topic)).partitions == 1

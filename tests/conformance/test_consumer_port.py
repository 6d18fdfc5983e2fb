"""What a member of a group promises: joining, reading from positions that are ours alone, and commits."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outboxd.errors import (
    AssignmentLost,
    BrokerError,
    FetchUndecodable,
    OffsetOutOfRange,
    TopicUnknown,
)
from outboxd.records import TopicPartition
from tests.conformance.kafka_world import World, tally
from tests.conformance.telling import conforms

pytest_plugins = ["tests.conformance.kafka_stages"]

# -- joining and leaving


@conforms
async def test_the_listener_is_told_of_nothing_taken_and_then_of_what_is_ours(kafka: World) -> None:
    topic = await kafka.topic(2)
    partitions = [TopicPartition(topic, number) for number in range(2)]
    member = kafka.member(topic)
    await member.join()
    assert member.told == [("revoked", []), ("assigned", partitions)]
    await member.end()
    assert member.told[2:] == [], "leaving tells the listener nothing"


@conforms
async def test_a_topic_that_is_not_there_is_told_at_once(kafka: World) -> None:
    topic = await kafka.topic()
    member = kafka.member(topic, f"{topic}-missing")
    async with asyncio.timeout(10):
        with pytest.raises(TopicUnknown, match="missing"):
            await member.start()


@conforms
async def test_a_group_that_never_takes_the_member_is_told(kafka: World) -> None:
    member = kafka.member(await kafka.topic(), session=0.1)  # below the broker's minimum
    await member.start()
    await kafka.until(lambda: member.refusals)
    assert "InvalidSessionTimeout" in member.refusals[0].message


@pytest.mark.fixes("B010")
@conforms
async def test_after_a_clean_stop_nothing_comes_again(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 3)
    member = kafka.member(topic)
    await member.join()
    await member.until_seen(3)
    await member.commit()
    assert await member.port.committed(partition) == (3, "")
    assert (await member.port.beginning_offset(partition), await member.port.end_offset(partition)) == (0, 3)
    await member.end()
    again = kafka.member(topic)
    await again.join()
    assert await again.step() == 0
    assert await again.port.position(partition) == 3


@conforms
async def test_a_member_that_is_not_there_any_more_can_do_nothing(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    member, never = kafka.member(topic), kafka.member(topic)
    await member.join()
    await member.end()
    for port in (member.port, never.port):
        with pytest.raises(AssignmentLost):
            await port.poll(partition, max_records=1, timeout=timedelta())
        with pytest.raises(AssignmentLost):
            await port.commit({partition: (1, "")})
        with pytest.raises(AssignmentLost):
            await port.committed(partition)
        with pytest.raises(AssignmentLost):
            await port.end_offset(partition)
        with pytest.raises(AssignmentLost):
            port.seek(partition, 0)
        port.pause(partition)
        port.resume(partition)
        await port.stop()


# -- reading


@conforms
async def test_a_poll_gives_no_more_than_it_is_asked_for_and_the_rest_comes_next(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 25)
    member = kafka.member(topic)
    await member.join()
    found: list[int] = []
    while len(found) < 25:
        records = await member.poll(partition, most=10, seconds=2)
        assert 0 < len(records) <= 10
        found += [record.offset for record in records]
        assert await member.port.position(partition) == found[-1] + 1
    assert found == list(range(25))
    assert await member.poll(partition) == []


@conforms
async def test_a_poll_waits_for_records_up_to_its_time(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    member = kafka.member(topic)
    await member.join()
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await member.poll(partition, seconds=0.3) == []
    assert loop.time() - began >= 0.25
    polling = asyncio.create_task(member.poll(partition, seconds=20))
    await kafka.fill(topic, 1)
    assert [record.offset for record in await polling] == [0]


@conforms
async def test_a_cancelled_poll_loses_no_record(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    member = kafka.member(topic)
    await member.join()
    for _ in range(20):
        polling = asyncio.create_task(member.poll(partition, seconds=5))
        await asyncio.sleep(0.005)
        polling.cancel()
        await asyncio.wait({polling})
    await kafka.fill(topic, 10)
    await member.until_seen(10)
    assert tally(member.seen) == {partition: list(range(10))}


@pytest.mark.fixes("B005")
@conforms
async def test_many_short_polls_do_not_end_the_fetching(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    member = kafka.member(topic)
    await member.join()
    for _ in range(200):
        await member.poll(partition, seconds=0.005)
    await kafka.fill(topic, 10)
    await member.until_seen(10)


@conforms
async def test_a_paused_partition_gives_nothing_and_goes_on_where_it_was(kafka: World) -> None:
    topic = await kafka.topic(2)
    first, second = (TopicPartition(topic, number) for number in range(2))
    await kafka.fill(topic, 20)
    member = kafka.member(topic)
    await member.join()
    assert [record.offset for record in await member.poll(first, most=5, seconds=5)] == [0, 1, 2, 3, 4]
    member.port.pause(first)
    for _ in range(3):
        assert await member.poll(first) == []
    await kafka.fill(topic, 1, partition=1)
    assert len(await member.poll(second, seconds=5)) == 1
    member.port.seek(first, 3)  # also while it is paused
    assert await member.poll(first) == []
    member.port.resume(first)
    assert [record.offset for record in await member.poll(first, seconds=5)] == list(range(3, 20))


@conforms
async def test_a_partition_that_is_not_ours_is_paused_without_effect_and_never_sought(kafka: World) -> None:
    topic = await kafka.topic()
    member = kafka.member(topic)
    await member.join()
    stranger = TopicPartition(topic, 99)
    member.port.pause(stranger)
    member.port.resume(stranger)
    with pytest.raises(AssignmentLost):
        member.port.seek(stranger, 0)
    with pytest.raises(AssignmentLost):
        await member.port.position(stranger)
    with pytest.raises(AssignmentLost):
        await member.poll(stranger)


@conforms
async def test_the_position_passes_over_markers(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 1)
    await kafka.mark(partition)
    member = kafka.member(topic)
    await member.join()
    await member.until_seen(1)
    async with asyncio.timeout(10):
        while await member.port.position(partition) < 2:
            assert await member.poll(partition) == []
    assert await member.port.end_offset(partition) == 2


@conforms
async def test_an_offset_that_is_not_in_the_log_is_told_at_each_poll_until_it_is_sought(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 10)
    await kafka.trim(partition, 4)
    member = kafka.member(topic)
    await member.join()
    assert await member.port.beginning_offset(partition) == 4
    for outside in (100, 2):
        member.port.seek(partition, outside)
        for _ in range(2):
            with pytest.raises(OffsetOutOfRange):
                await member.poll_on(partition)
        assert await member.port.position(partition) == outside
    member.port.seek(partition, 4)
    await member.until_seen(6)
    assert tally(member.seen) == {partition: list(range(4, 10))}


@conforms
async def test_what_cannot_be_decoded_is_told_at_each_poll_and_costs_no_other_record(kafka: World) -> None:
    topic = await kafka.topic(2)
    bad, good = (TopicPartition(topic, number) for number in range(2))
    await kafka.fill(topic, 3)
    await kafka.append_undecodable(bad)
    await kafka.fill(topic, 2)
    await kafka.fill(topic, 5, partition=1)
    member = kafka.member(topic)
    await member.join()
    with pytest.raises(FetchUndecodable):
        await member.poll_on(bad, most=50)
    assert await member.port.position(bad) == 0, "what stands before it is withheld, and not passed over"
    for offset in range(3):
        assert [record.offset for record in await member.poll_on(bad, most=1)] == [offset]
    for _ in range(2):
        with pytest.raises(FetchUndecodable):
            await member.poll_on(bad, most=1)
        assert await member.port.position(bad) == 3
    assert [record.offset for record in await member.poll_on(good)] == list(range(5))
    member.port.seek(bad, 4)
    assert [record.offset for record in await member.poll_on(bad)] == [4, 5]


# -- committing


@conforms
async def test_commits_keep_their_metadata_and_may_go_back(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 5)
    member = kafka.member(topic)
    await member.join()
    assert await member.port.committed(partition) is None
    await member.port.commit({partition: (3, "done: 5-7")})
    assert await member.port.committed(partition) == (3, "done: 5-7")
    await member.port.commit({partition: (1, "")})
    assert await member.port.committed(partition) == (1, "")
    await member.port.commit({partition: (5_000, "")})  # nobody asks whether the log goes so far
    assert await member.port.committed(partition) == (5_000, "")


@conforms
async def test_a_commit_for_a_partition_of_others_is_refused_as_a_whole(kafka: World) -> None:
    topic = await kafka.topic(2)
    ours, other = TopicPartition(topic, 0), TopicPartition(f"{topic}-other", 0)
    member = kafka.member(topic)
    await member.join()
    with pytest.raises(AssignmentLost):
        await member.port.commit({ours: (3, ""), other: (3, "")})
    assert await member.port.committed(ours) is None
    with pytest.raises(ValueError, match="-1"):
        await member.port.commit({ours: (-1, "")})
    assert await member.port.committed(ours) is None


@conforms
async def test_metadata_that_is_too_long_is_refused_and_the_member_stays(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    member = kafka.member(topic)
    await member.join()
    with pytest.raises(BrokerError):
        await member.port.commit({partition: (1, "x" * 5_000)})
    assert await member.port.committed(partition) is None
    await member.port.commit({partition: (1, "x" * 4_000)})
    assert len(member.told) == 2

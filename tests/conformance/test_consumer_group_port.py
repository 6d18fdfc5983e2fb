"""What a member of a group goes through: rebalances as they really are, topics that change, brokers that are away."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from outboxd.errors import (
    AssignmentLost,
    BrokerUnreachable,
)
from outboxd.records import TopicPartition
from tests.conformance.kafka_world import Member, World, breaks, others, tally
from tests.conformance.telling import conforms

pytest_plugins = ["tests.conformance.kafka_stages"]

# -- rebalances


@pytest.mark.fixes("B002")
@conforms
async def test_members_come_and_go_and_no_record_is_lost(kafka: World) -> None:
    topic = await kafka.topic(4)
    for number in range(4):
        await kafka.fill(topic, 300, partition=number)
    first, second = kafka.member(topic, session=2), kafka.member(topic, session=2)
    for member in (first, second):
        member.drain = member.commit
    await first.join()
    await first.until_seen(200)
    await second.start()

    def seen() -> int:
        return len({(record.partition, record.offset) for record in first.seen + second.seen})

    async with asyncio.timeout(40):
        while seen() < 1_200:
            await asyncio.gather(first.step(20), second.step(20))
    assert second.seen
    assert len(first.owned) == len(second.owned) == 2
    assert sorted(first.owned + second.owned) == [TopicPartition(topic, number) for number in range(4)]
    with pytest.raises(AssignmentLost):
        await first.port.commit({second.owned[0]: (1, "")})
    for offsets in (*tally(first.seen).values(), *tally(second.seen).values()):
        assert offsets == sorted(set(offsets)), "committed before it was given up: nothing comes twice"


@conforms
async def test_a_member_that_leaves_is_not_waited_for(kafka: World) -> None:
    topic = await kafka.topic(2)
    first, second = kafka.member(topic, session=10), kafka.member(topic, session=10)
    await first.join()
    await second.join()
    await kafka.until(lambda: len(first.owned) == len(second.owned) == 1)
    began = asyncio.get_running_loop().time()
    await second.end()
    await kafka.until(lambda: len(first.owned) == 2)
    assert asyncio.get_running_loop().time() - began < 6


@conforms
async def test_a_member_that_died_keeps_its_partitions_until_its_session_is_over(kafka: World) -> None:
    topic = await kafka.topic(2)
    first, second = kafka.member(topic, session=2), kafka.member(topic, session=2)
    await first.join()
    await second.join()
    await kafka.until(lambda: len(first.owned) == len(second.owned) == 1)
    began = asyncio.get_running_loop().time()
    await kafka.crash(second)
    await kafka.until(lambda: len(first.owned) == 2)
    assert asyncio.get_running_loop().time() - began > 1


@conforms
async def test_commits_are_possible_while_partitions_are_taken_away(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 3)
    first = kafka.member(topic, session=2)
    await first.join()
    await first.until_seen(3)

    async def drain() -> None:
        await asyncio.sleep(0.5)
        await first.port.commit({partition: (3, "")})

    first.drain = drain
    second = kafka.member(topic, session=2)
    await second.start()
    await kafka.until(lambda: ("assigned", [partition]) in second.told[1:] or len(first.told) == 4)
    assert await first.port.committed(partition) == (3, "")


@conforms
async def test_nothing_of_an_assignment_is_left_in_the_next_one(kafka: World) -> None:
    topic = await kafka.topic(2)
    member = kafka.member(topic, session=2)
    await member.join()
    await kafka.fill(topic, 3)
    await kafka.fill(topic, 3, partition=1)
    for partition in member.owned:
        member.port.pause(partition)
        member.port.seek(partition, 2)
    member._seeks = False
    other = kafka.member(topic, session=2)
    await other.join()
    await other.end()
    await kafka.until(lambda: len(member.owned) == 2 and member.told[-1][0] == "assigned")
    for partition in member.owned:
        with pytest.raises(AssignmentLost):
            await member.poll(partition)  # it has no position
        member.port.seek(partition, 0)
        assert len(await member.poll_on(partition)) == 3, "it is not paused any more"


@conforms
async def test_a_poll_that_is_begun_while_partitions_are_taken_away_blocks_until_that_is_over(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    first = kafka.member(topic, session=2)
    await first.join()
    is_draining, may_end = asyncio.Event(), asyncio.Event()

    async def drain() -> None:
        is_draining.set()
        await may_end.wait()

    first.drain = drain
    second = kafka.member(topic, session=2)
    await second.start()
    await is_draining.wait()
    polling = asyncio.create_task(first.poll(partition, seconds=0.1))
    await asyncio.sleep(0.7)
    assert not polling.done()
    may_end.set()
    with pytest.raises(AssignmentLost):
        await polling


@conforms
async def test_a_member_that_drains_too_long_loses_its_partitions_while_it_still_works(kafka: World) -> None:
    topic = await kafka.topic(3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    partition = partitions[0]
    first = kafka.member(topic, session=3, rebalance=1.5)
    await first.join()
    overlap = asyncio.Event()
    commits: list[BaseException | None] = []

    async def drain() -> None:
        await overlap.wait()
        try:
            await first.port.commit({partition: (1, "")})
        except AssignmentLost as error:
            commits.append(error)
        else:
            commits.append(None)

    first.drain = drain
    second = kafka.member(topic, session=3, rebalance=1.5)
    await second.join()
    assert first.owned == second.owned == partitions, "two owners"
    await second.port.commit({partition: (7, "")})
    overlap.set()
    await kafka.until(lambda: commits)
    assert commits != [None], "its commit comes too late"
    assert await second.port.committed(partition) == (7, "")
    first.drain = first._nothing
    await kafka.until(lambda: len(first.told) == 4)  # it has joined again


@conforms
async def test_a_drain_may_take_longer_than_the_session(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    first = kafka.member(topic, session=1, rebalance=10)
    await first.join()

    async def drain() -> None:
        await asyncio.sleep(2)
        await first.port.commit({partition: (3, "")})

    first.drain = drain
    second = kafka.member(topic, session=1, rebalance=10)
    await second.start()
    await kafka.until(lambda: len(first.told) == len(second.told) + 2 == 4)
    assert await second.port.committed(partition) == (3, "")


@conforms
async def test_what_a_listener_raises_is_swallowed_and_the_group_goes_on(kafka: World) -> None:
    topic = await kafka.topic(2)
    first = kafka.member(topic, session=2)
    first.fails = True
    await first.join()
    second = kafka.member(topic, session=2)
    await second.join()
    await kafka.until(lambda: len(first.owned) == len(second.owned) == 1)
    await kafka.fill(topic, 1, partition=first.owned[0].partition)
    await first.until_seen(1)


@conforms
async def test_a_member_that_stood_still_for_longer_than_its_session_is_out_and_joins_again(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 1)
    member = kafka.member(topic, session=1, rebalance=2)
    await member.join()
    await member.until_seen(1)
    kafka.stand_still(1.6)
    with pytest.raises(AssignmentLost):
        await member.commit()
    await kafka.until(lambda: len(member.told) == 4)
    assert member.told[2:] == [("revoked", [partition]), ("assigned", [partition])]
    assert await member.port.position(partition) == 0
    await member.until_seen(2)  # what was not committed comes again


# -- static members


@conforms
async def test_a_static_member_that_comes_back_in_its_session_disturbs_nobody(kafka: World) -> None:
    topic = await kafka.topic(2)
    other = kafka.member(topic, session=6)
    await other.join()
    static = kafka.member(topic, session=6, instance_id="pod-1")
    await static.join()
    await kafka.until(lambda: len(other.owned) == len(static.owned) == 1)
    told, owned = list(other.told), list(static.owned)
    await static.end()
    again = kafka.member(topic, session=6, instance_id="pod-1")
    await again.join()
    assert again.owned == owned
    await again.port.commit({owned[0]: (3, "")})
    assert await again.port.committed(owned[0]) == (3, "")
    await asyncio.sleep(1)
    assert other.told == told


@conforms
async def test_a_static_member_that_stays_away_keeps_its_partitions_until_its_session_is_over(kafka: World) -> None:
    topic = await kafka.topic(2)
    other = kafka.member(topic, session=2)
    static = kafka.member(topic, session=2, instance_id="pod-1")
    await other.join()
    await static.join()
    await kafka.until(lambda: len(other.owned) == len(static.owned) == 1)
    began = asyncio.get_running_loop().time()
    await static.end()
    await kafka.until(lambda: len(other.owned) == 2)
    assert asyncio.get_running_loop().time() - began > 1


@conforms
async def test_two_members_of_one_instance_id_take_the_membership_from_each_other(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    first = kafka.member(topic, session=2, instance_id="pod-1")
    await first.join()
    second = kafka.member(topic, session=2, instance_id="pod-1")
    await second.join()
    assert first.owned == second.owned == [partition], "both hold the same"
    with pytest.raises(AssignmentLost):
        await first.port.commit({partition: (1, "")})
    await kafka.until(lambda: len(first.told) > 2)


# -- topics that change


@conforms
async def test_partitions_that_are_added_are_given_to_the_group(kafka: World) -> None:
    topic = await kafka.topic()
    member = kafka.member(topic, session=2)
    await member.join()
    await kafka.add_partitions(topic, 3)
    await kafka.until(lambda: len(member.owned) == 3, seconds=45)


@conforms
async def test_offsets_go_with_a_topic_that_is_deleted(kafka: World) -> None:
    topic, other = await kafka.topic(), await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 3)
    member = kafka.member(topic, other, session=2)
    await member.join()
    await member.port.commit({partition: (3, "")})
    await kafka.delete_topic(topic)
    await kafka.until(lambda: member.owned == [TopicPartition(other, 0)], seconds=45)
    await kafka.topic(name=topic)
    await kafka.until(lambda: len(member.owned) == 2, seconds=45)
    assert await member.port.committed(partition) is None
    await kafka.fill(topic, 1)
    member.port.seek(partition, 0)
    assert len(await member.poll_on(partition)) == 1


@breaks
@conforms
async def test_a_commit_for_a_topic_that_went_away_does_not_succeed(kafka: World) -> None:
    topic = await kafka.topic()
    member = kafka.member(topic)
    await member.join()
    await kafka.delete_topic(topic)
    async with asyncio.timeout(20):
        with pytest.raises((BrokerUnreachable, AssignmentLost)):
            await member.port.commit({TopicPartition(topic, 0): (1, "")})


# -- brokers that do not answer


@pytest.mark.fixes("B007")
@breaks
@conforms
async def test_without_a_broker_there_is_nothing_to_read_and_no_commit_and_afterwards_all_goes_on(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 3)
    member = kafka.member(topic, session=30)
    await member.join()
    await member.until_seen(3)
    await kafka.kill()
    assert await member.poll(partition, seconds=0.5) == [], "an outage is no error of a poll"
    async with asyncio.timeout(35):
        with pytest.raises(BrokerUnreachable):
            await member.commit()
        with pytest.raises(BrokerUnreachable):
            await member.port.end_offset(partition)
        with pytest.raises(BrokerUnreachable):
            await kafka.member(topic).start()
    await kafka.restart()
    await kafka.fill(topic, 2)
    await member.until_seen(5)
    assert tally(member.seen) == {partition: list(range(5))}
    async with asyncio.timeout(45):  # a request that got lost is noticed after 30 s
        while await _committed(member, partition) != (5, ""):
            with contextlib.suppress(BrokerUnreachable):
                await member.commit()
    assert len(member.told) == 2, "it is still the same assignment"


async def _committed(member: Member, partition: TopicPartition) -> tuple[int, str] | None:
    try:
        return await member.port.committed(partition)
    except BrokerUnreachable:
        return None


@pytest.mark.fixes("B007")
@breaks
@conforms
async def test_a_member_of_a_frozen_broker_ends_in_time_and_leaves_no_task(kafka: World) -> None:
    topic = await kafka.topic()
    member = kafka.member(topic)
    await member.join()
    kafka.freeze()
    polling = asyncio.create_task(member.poll(TopicPartition(topic, 0), seconds=1))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(15):
        await member.end()
        with contextlib.suppress(AssignmentLost):
            assert await polling == []
    assert others() == []
    kafka.thaw()


@breaks
@conforms
async def test_a_frozen_broker_gives_a_member_nothing_and_takes_nothing_from_it(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    await kafka.fill(topic, 3)
    member = kafka.member(topic, session=20)
    await member.join()
    await member.until_seen(3)
    kafka.freeze()
    assert await member.poll(partition, seconds=0.5) == []
    committing = asyncio.create_task(member.commit())
    await asyncio.sleep(1)
    assert not committing.done()
    kafka.thaw()
    await committing
    await kafka.fill(topic, 1)
    await member.until_seen(4)
    assert len(member.told) == 2


@breaks
@conforms
async def test_a_commit_that_found_no_answer_may_still_take_effect(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    member = kafka.member(topic, session=20)
    await member.join()
    kafka.freeze()
    with pytest.raises(BrokerUnreachable):
        await member.port.commit({partition: (3, "")})
    kafka.thaw()
    await asyncio.sleep(0.5)
    assert await member.port.committed(partition) in {None, (3, "")}
    await member.port.commit({partition: (4, "")})
    assert await member.port.committed(partition) == (4, "")

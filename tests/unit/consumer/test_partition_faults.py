"""A fault of one partition is a fault of that partition."""

from __future__ import annotations

import asyncio

from outboxd.errors import BrokerUnreachable, FetchUndecodable
from outboxd.records import TopicPartition
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, eventually

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


@virtual_time
async def test_a_poll_that_raises_for_one_partition_loses_no_record_of_another() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    rig = Rig(cluster)
    await rig.start()
    cluster.poll_faults[FIRST] = BrokerUnreachable("leader moves")
    for index in range(100):
        cluster.produce("orders", b"%d" % index, b"v", partition=index % 2)
        await asyncio.sleep(0.05)
    await eventually(lambda: cluster.offset_of("shop", SECOND) == 50)
    assert cluster.offset_of("shop", FIRST) == 0
    assert rig.stall() == "broker_unreachable"
    del cluster.poll_faults[FIRST]
    await eventually(lambda: cluster.offset_of("shop", FIRST) == 50)
    assert rig.stall() is None
    assert len(rig.handler.done) == 100
    await rig.stop()


@virtual_time
async def test_a_partition_that_cannot_be_decoded_is_parked_visibly_and_the_others_go_on() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    rig = Rig(cluster)
    cluster.produce("orders", b"a", b"v", partition=0)
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", FIRST) == 1)
    cluster.poll_faults[FIRST] = FetchUndecodable("header name is not UTF-8")
    cluster.produce("orders", b"b", b"v", partition=0)
    cluster.produce("orders", b"c", b"v", partition=1)
    await eventually(lambda: cluster.offset_of("shop", SECOND) == 1)
    polls = rig.member.polls
    await asyncio.sleep(300)
    assert rig.stall() == "partition_parked"
    assert cluster.offset_of("shop", FIRST) == 1
    assert len(rig.log.fields_of("partition_parked")) == 1
    assert polls + 590 < rig.member.polls < polls + 700
    assert len(cluster.consumers) == 1
    await rig.stop()


@virtual_time
async def test_a_committed_position_that_cannot_be_read_is_asked_for_again() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.produce("orders", b"k", b"v")
    rig = Rig(cluster)
    await rig.start()
    member = rig.member
    answer, left = member.committed, [3]

    async def failing(tp: TopicPartition) -> object:
        if left[0]:
            left[0] -= 1
            raise BrokerUnreachable("coordinator moves")
        return await answer(tp)

    member.committed = failing
    await cluster.groups["shop"].rebalance()
    cluster.produce("orders", b"k", b"v")
    await eventually(lambda: cluster.offset_of("shop", FIRST) == 2)
    assert sorted(set(rig.handler.offsets())) == [0, 1]
    await rig.stop()

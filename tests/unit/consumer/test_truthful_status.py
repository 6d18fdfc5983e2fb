"""Status tells the truth (invariant 12): what is over, or concerns a partition that went elsewhere, is not shown for ever."""

from __future__ import annotations

import asyncio
from uuid import UUID

from outboxd.errors import BrokerUnreachable
from outboxd.ports import ReplayItem
from outboxd.records import Record, TopicPartition, Verdict
from outboxd.testing.fakes.clock import FakeClock, VirtualTimeLoop, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually, rule, settings_of

TP = TopicPartition("orders", 0)


@virtual_time
async def test_a_partition_that_could_not_be_read_and_went_elsewhere_is_no_trouble_of_this_replica() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    rig, other = Rig(cluster), Rig(cluster)
    await rig.start()
    await eventually(lambda: rig.member.assignment)
    member = rig.member
    cluster.poll_faults[TP] = cluster.poll_faults[TopicPartition("orders", 1)] = BrokerUnreachable("leader moves")
    await eventually(lambda: rig.stall() == "broker_unreachable")
    await other.start()
    await eventually(lambda: len(member.assignment) == 1)
    cluster.poll_faults.clear()
    await eventually(lambda: rig.stall() is None, 10)
    await rig.stop()
    await other.stop()


@virtual_time
async def test_an_outage_with_nothing_in_hand_is_not_shown_and_a_replay_may_end_it() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    error: list[Exception] = [ValueError("bad")]

    async def answer(record: Record) -> None:
        if error:
            raise error[0]

    rules = [rule(Verdict.DEAD_LETTER, "ValueError"), rule(Verdict.PAUSE, "ConnectionError")]
    rig = Rig(cluster, handler=ScriptedHandler(answer), rules=rules)
    cluster.produce("orders", b"k", b"bad")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    error[0] = ConnectionError("away")
    cluster.produce("orders", b"k", b"later")
    await eventually(lambda: rig.stall() == "dependency_out")
    # Another replica has handled what waited: this one comes back to its partition with nothing left to probe with.
    cluster.committed["shop", TP] = (2, "")
    await cluster.groups["shop"].rebalance()
    await eventually(lambda: rig.run.health().detail["committed"] == {"orders-0": 2})
    assert rig.stall() is None
    error.clear()
    item = ReplayItem(job_id=UUID(int=1), letter=rig.chain.letters[0], attempt=1)
    await asyncio.sleep(10)
    await rig.run.replay(item)
    assert rig.handler.done[-1].offset == 0
    cluster.produce("orders", b"k", b"latest")
    await eventually(lambda: cluster.offset_of("shop", TP) == 3, 5)
    await rig.stop()


@virtual_time
async def test_a_handler_gets_the_time_back_in_which_the_whole_process_stood_still() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})

    async def answer(record: Record) -> None:
        await asyncio.sleep(25)

    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of(timeout="30s"))
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await eventually(lambda: rig.handler.running)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    asyncio.get_running_loop().call_later(20, loop.jump, 60.0)
    await eventually(lambda: rig.handler.done, 200)
    assert [record.attempt for record in rig.handler.calls] == [1]
    await rig.stop()


@virtual_time
async def test_a_handler_that_hangs_ends_at_its_deadline_also_when_the_process_stood_still_meanwhile() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})

    async def answer(record: Record) -> None:
        if record.attempt == 1:
            await asyncio.sleep(3600)

    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of(timeout="30s"))
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await eventually(lambda: rig.handler.running)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.call_later(20, loop.jump, 60.0)
    await eventually(lambda: len(rig.handler.calls) == 2, 200)
    await eventually(lambda: rig.handler.done, 200)
    await rig.stop()

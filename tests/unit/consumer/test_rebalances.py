"""Partitions come and go: drains, late handlers, state that must not survive, and members that overlap."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.records import Record, TopicPartition
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import ListChain, Rig, ScriptedHandler, eventually, settings_of

TP = TopicPartition("orders", 0)


@pytest.mark.fixes("B008")
@virtual_time
async def test_a_revoke_waits_for_work_in_flight_and_commits_it() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(2)

    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    one = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of({"concurrency": 2}))
    two = Rig(cluster, settings=one.settings)
    for partition in (0, 1):
        for _ in range(50):
            cluster.produce("orders", b"k%d" % partition, b"v", partition=partition)
    await one.start()
    began = asyncio.get_running_loop().time()
    await two.start()
    await eventually(lambda: two.run.health().detail["assigned"])
    heartbeat, work = 3, 2  # the one hears of the other by its heartbeat, then finishes what it has begun
    assert asyncio.get_running_loop().time() - began < heartbeat + work + 1
    await eventually(lambda: all(cluster.offset_of("shop", tp) == 50 for tp in cluster.logs))
    handled = [(r.partition, r.offset) for r in one.handler.done + two.handler.done]
    assert len(handled) == len(set(handled)) == 100
    await one.stop()
    await two.stop()


@virtual_time
async def test_a_handler_that_is_late_for_a_revoke_is_cancelled_without_an_attempt_or_a_letter() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(3600)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of({"rebalance_timeout": "30s"}, errors={"retry": {"attempts": 1}}, timeout="300s")
    one = Rig(cluster, handler=ScriptedHandler(answer), settings=settings)
    two = Rig(cluster, settings=settings)
    cluster.produce("orders", b"k", b"v")
    await one.start()
    began = asyncio.get_running_loop().time()
    await two.start()
    await eventually(lambda: one.run.health().detail["assigned"] + two.run.health().detail["assigned"])  # type: ignore[operator]
    await eventually(lambda: one.handler.running == [])
    assert 9 < asyncio.get_running_loop().time() - began < 20
    assert one.chain.letters == []
    assert cluster.offset_of("shop", TP) == 0
    await one.cancel()
    await two.cancel()


@virtual_time
async def test_a_result_of_an_earlier_assignment_changes_nothing() -> None:
    stubborn = asyncio.Event()

    async def answer(record: Record) -> None:
        if record.offset == 0 and not stubborn.is_set():
            while not stubborn.is_set():
                try:
                    await stubborn.wait()
                except asyncio.CancelledError:
                    continue

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of({"rebalance_timeout": "22s"}, timeout="300s")
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings)
    cluster.produce("orders", b"k", b"v")
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await cluster.groups["shop"].rebalance()
    await asyncio.sleep(5)
    assert cluster.offset_of("shop", TP) == 0
    assert rig.handler.overlaps == []
    stubborn.set()
    await eventually(lambda: cluster.offset_of("shop", TP) == 2)
    assert [record.offset for record in rig.handler.done] == [0, 0, 1]
    await rig.stop()


@pytest.mark.fixes("B014")
@virtual_time
async def test_a_wait_for_a_retry_does_not_survive_the_loss_of_its_partition() -> None:
    async def answer(record: Record) -> None:
        raise ValueError("no")

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of(errors={"retry": {"initial": "30s", "max": "30s"}})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings)
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    assert rig.run.health().detail["retrying"] == 1
    for _ in range(2):
        await cluster.groups["shop"].rebalance()
        await asyncio.sleep(3)
    assert rig.run.health().detail["retrying"] == 1
    assert len(rig.handler.calls) == 3
    assert [record.attempt for record in rig.handler.calls] == [1, 1, 1]
    await rig.cancel()


@pytest.mark.fixes("B014")
@virtual_time
async def test_a_pause_does_not_survive_a_rebalance() -> None:
    hold = asyncio.Event()

    async def answer(record: Record) -> None:
        await hold.wait()

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of({"max_pending": 4, "rebalance_timeout": "21s"}, timeout="300s")
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings)
    for index in range(40):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await eventually(lambda: rig.member.paused)
    rebalance = asyncio.create_task(cluster.groups["shop"].rebalance())
    await rebalance
    hold.set()
    await eventually(lambda: cluster.offset_of("shop", TP) == 40)
    await rig.stop()


@pytest.mark.fixes("B002")
@virtual_time
async def test_members_join_and_leave_for_minutes_without_loss_a_second_letter_or_a_crash() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(0.05)
        if record.raw_value == b"bad":
            raise ValueError("bad")

    cluster = FakeCluster(FakeClock(), topics={"orders": 4})
    chain = ListChain()
    settings = settings_of({"commit_every": "50ms"}, errors={"retry": {"attempts": 2, "initial": "100ms"}})
    rigs = [Rig(cluster, handler=ScriptedHandler(answer), settings=settings, chain=chain) for _ in range(3)]
    await rigs[0].start()
    for turn in range(20):
        for index in range(40):
            value = b"bad" if index % 20 == 0 else b"good"
            cluster.produce("orders", b"%d" % (index % 13), value, partition=index % 4)
        joining = rigs[1 + turn % 2]
        await joining.start()
        await asyncio.sleep(5)
        await joining.stop()
        await asyncio.sleep(5)
    await eventually(lambda: all(cluster.offset_of("shop", tp) == log.end for tp, log in cluster.logs.items()))
    done = {(r.partition, r.offset) for rig in rigs for r in rig.handler.done}
    letters = {(letter.partition, letter.offset) for letter in chain.letters}
    assert len(done | letters) == 800
    assert len(chain.letters) == len(letters) == 40
    assert {letter.attempts for letter in chain.letters} == {2}
    await rigs[0].stop()


@virtual_time
async def test_what_a_poll_of_the_last_assignment_took_is_read_again() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster)
    await rig.start()
    rebalance = asyncio.create_task(cluster.groups["shop"].rebalance())
    cluster.produce("orders", b"k", b"v")
    await rebalance
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    assert rig.handler.offsets() == [0]
    await rig.stop()


@virtual_time
async def test_a_callback_that_fails_is_not_swallowed() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster)
    await rig.start()
    rig.run._membership.committer.commit = None  # type: ignore[union-attr, method-assign]
    await cluster.groups["shop"].rebalance()
    assert rig.task is not None
    with pytest.raises(TypeError):
        await rig.task

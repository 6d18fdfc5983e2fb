"""Order within a key, work in parallel, and what is committed when."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.errors import AssignmentLost, BrokerUnreachable
from outboxd.records import Record, TopicPartition, Verdict
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually, leftover_tasks, settings_of

TP = TopicPartition("orders", 0)


@virtual_time
async def test_records_of_one_key_run_in_offset_order_and_keys_run_in_parallel() -> None:
    async def slow(record: Record) -> None:
        await asyncio.sleep(1.0 if record.key == b"a" else 0.1)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(slow))
    for index in range(12):
        cluster.produce("orders", b"abc"[index % 3 : index % 3 + 1], b"v")
    await rig.start()
    await eventually(lambda: len(rig.handler.done) == 12)
    assert rig.handler.overlaps == []
    assert rig.handler.most_at_once == 3
    for key in (b"a", b"b", b"c"):
        offsets = [record.offset for record in rig.handler.calls if record.key == key]
        assert offsets == sorted(offsets)
    await rig.stop()


@virtual_time
async def test_records_without_a_key_have_no_order_and_no_more_than_the_concurrency_run_at_once() -> None:
    async def slow(record: Record) -> None:
        await asyncio.sleep(1)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(slow), settings=settings_of({"concurrency": 5}))
    for _ in range(20):
        cluster.produce("orders", None, b"v")
    await rig.start()
    await eventually(lambda: len(rig.handler.done) == 20)
    assert rig.handler.most_at_once == 5
    await rig.stop()


@virtual_time
async def test_the_committed_offset_stays_before_a_record_that_is_not_done() -> None:
    hold = asyncio.Event()

    async def answer(record: Record) -> None:
        if record.offset == 2:
            await hold.wait()

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer))
    for index in range(6):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await asyncio.sleep(3)
    assert sorted(rig.handler.offsets()) == [0, 1, 3, 4, 5]
    assert cluster.offset_of("shop", TP) == 2
    hold.set()
    await eventually(lambda: cluster.offset_of("shop", TP) == 6)
    await rig.stop()


@pytest.mark.fixes("B010")
@virtual_time
async def test_when_nothing_is_pending_the_committed_offset_follows_past_control_records() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster)
    for index in range(3):
        cluster.produce("orders", b"%d" % index, b"v")
    cluster.mark("orders")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 4)
    await rig.stop()
    await rig.start()
    await asyncio.sleep(5)
    assert len(rig.handler.calls) == 3
    await rig.stop()


@virtual_time
async def test_a_clean_stop_with_a_full_hand_hands_nothing_over_twice() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(0.2 if record.key == b"0" else 0.01)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of({"concurrency": 2}))
    for index in range(300):
        cluster.produce("orders", b"%d" % (index % 7), b"v")
    await rig.start()
    await asyncio.sleep(0.5)
    await rig.stop()
    assert 0 < len(rig.handler.done) < 300
    await rig.start()
    await eventually(lambda: len({record.offset for record in rig.handler.done}) == 300)
    await rig.stop()
    assert len(rig.handler.done) == 300
    assert cluster.offset_of("shop", TP) == 300


@pytest.mark.fixes("B002")
@virtual_time
async def test_a_refused_commit_is_no_error_of_a_record_and_comes_again() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.commit_faults.extend([AssignmentLost("rebalancing"), BrokerUnreachable("gone"), AssignmentLost("again")])
    rig = Rig(cluster)
    for index in range(5):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 5)
    assert len(rig.handler.calls) == 5
    assert rig.chain.letters == []
    assert rig.run.health().stall is None
    await rig.stop()


@virtual_time
async def test_commits_never_go_back() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    rig = Rig(cluster)
    await rig.start()
    for index in range(60):
        cluster.produce("orders", b"%d" % index, b"v", partition=index % 2)
        await asyncio.sleep(0.1)
    await rig.stop()
    for tp in cluster.logs:
        offsets = [offset for _, at, offset in cluster.commits if at == tp]
        assert offsets == sorted(set(offsets))
        assert all(offset >= 0 for offset in offsets)


@virtual_time
async def test_a_partition_pauses_at_its_bound_is_still_polled_and_resumes() -> None:
    hold = asyncio.Event()

    async def answer(record: Record) -> None:
        await hold.wait()

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of({"max_pending": 10, "concurrency": 2}))
    for index in range(100):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await asyncio.sleep(5)
    assert rig.member.positions[TP] == 10
    assert rig.member.paused == {TP}
    polls = rig.member.polls
    await asyncio.sleep(30)
    assert rig.member.polls >= polls + 29
    hold.set()
    await eventually(lambda: cluster.offset_of("shop", TP) == 100)
    assert rig.member.paused == set()
    await rig.stop()


@virtual_time
async def test_bytes_in_hand_are_bounded_too() -> None:
    hold = asyncio.Event()

    async def answer(record: Record) -> None:
        await hold.wait()

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of({"max_pending_bytes": "1MiB"}))
    await rig.start()
    for index in range(300):
        cluster.produce("orders", b"%d" % index, b"x" * 100_000)
        await asyncio.sleep(0.01)
    assert rig.run.health().detail["pending"] == 11
    hold.set()
    await eventually(lambda: cluster.offset_of("shop", TP) == 300)
    await rig.stop()


@virtual_time
async def test_a_stuck_partition_leaves_room_for_the_others() -> None:
    async def answer(record: Record) -> None:
        if record.partition == 0:
            await asyncio.sleep(25)

    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of({"max_pending": 10}))
    for index in range(200):
        cluster.produce("orders", b"one", b"v", partition=0)
        cluster.produce("orders", b"%d" % index, b"v", partition=1)
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TopicPartition("orders", 1)) == 200, 20)
    await rig.cancel()


@virtual_time
async def test_a_skipped_record_is_done_and_logged() -> None:
    async def answer(record: Record) -> Verdict | None:
        return Verdict.SKIP if record.offset == 1 else None

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer))
    for index in range(3):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 3)
    assert [fields["offset"] for fields in rig.log.fields_of("record_skipped")] == [1]
    assert rig.chain.letters == []
    await rig.stop()
    await asyncio.sleep(1)
    assert leftover_tasks() == []

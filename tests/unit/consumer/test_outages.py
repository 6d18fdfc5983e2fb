"""An outage is not poison (invariant 5): the breaker, end to end."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.records import Record, TopicPartition, Verdict
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually, rule, settings_of

TP = TopicPartition("orders", 0)


class Dependency:
    def __init__(self) -> None:
        self.is_out = True
        self.error: Exception = RuntimeError("no answer")

    async def __call__(self, record: Record) -> None:
        await asyncio.sleep(0.01)
        if self.is_out:
            raise self.error


@pytest.mark.parametrize("key", [b"%d", None])
def test_ten_minutes_without_the_dependency_cost_no_letter_and_no_attempt(key: bytes | None) -> None:
    @virtual_time
    async def story() -> None:
        dependency = Dependency()
        cluster = FakeCluster(FakeClock(), topics={"orders": 1})
        rig = Rig(cluster, handler=ScriptedHandler(dependency))
        for index in range(2000):
            cluster.produce("orders", None if key is None else key % index, b"v")
        await rig.start()
        await asyncio.sleep(600)
        assert rig.stall() == "dependency_out"
        calls = len(rig.handler.calls)
        assert calls <= 64 + 5 + 600 / 5 + 2
        dependency.is_out = False
        await eventually(lambda: cluster.offset_of("shop", TP) == 2000)
        assert rig.chain.letters == []
        assert {record.attempt for record in rig.handler.done} == {1}
        assert rig.stall() is None
        await rig.stop()

    story()


@virtual_time
async def test_probes_go_round_over_the_keys() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(Dependency()), settings=settings_of({"concurrency": 1}))
    for index in range(10):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await eventually(lambda: rig.stall() == "dependency_out")
    before = len(rig.handler.calls)
    await asyncio.sleep(52)
    probed = [record.key for record in rig.handler.calls[before:]]
    assert len(probed) == 10
    assert len(set(probed)) == 10
    await rig.cancel()


@virtual_time
async def test_the_verdict_pause_opens_the_breaker_at_once_for_a_single_record() -> None:
    dependency = Dependency()
    dependency.error = ConnectionError("refused")
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(dependency), rules=[rule(Verdict.PAUSE, "ConnectionError")])
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await asyncio.sleep(60)
    assert rig.stall() == "dependency_out"
    assert len(rig.handler.calls) <= 13
    dependency.is_out = False
    await eventually(lambda: cluster.offset_of("shop", TP) == 1, 6)
    assert rig.handler.done[0].attempt == 1
    await rig.stop()


@virtual_time
async def test_a_record_that_fails_while_others_succeed_is_charged() -> None:
    async def answer(record: Record) -> None:
        if record.key == b"poison":
            raise RuntimeError("no")

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of(errors={"retry": {"attempts": 3}}))
    await rig.start()
    cluster.produce("orders", b"poison", b"v")
    for index in range(100):
        cluster.produce("orders", b"%d" % index, b"v")
        await asyncio.sleep(0.2)
    assert len(rig.chain.letters) == 1
    assert rig.stall() is None
    await rig.stop()


@virtual_time
async def test_a_lone_key_that_fails_is_charged_as_always() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(Dependency()), settings=settings_of(errors={"retry": {"attempts": 2}}))
    for _ in range(8):
        cluster.produce("orders", b"k", b"v")
    await rig.start()
    await eventually(lambda: len(rig.chain.letters) == 8)
    await rig.stop()


@virtual_time
async def test_polling_goes_on_in_an_outage() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(Dependency()))
    for index in range(50):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await asyncio.sleep(10)
    polls = rig.member.polls
    await asyncio.sleep(60)
    assert rig.member.polls >= polls + 59
    await rig.cancel()


@virtual_time
async def test_a_stop_in_an_outage_is_quick_and_keeps_the_offset() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(Dependency()))
    for index in range(50):
        cluster.produce("orders", b"%d" % index, b"v")
    await rig.start()
    await asyncio.sleep(10)
    began = asyncio.get_running_loop().time()
    await rig.stop()
    assert asyncio.get_running_loop().time() - began < 1
    assert cluster.offset_of("shop", TP) == 0

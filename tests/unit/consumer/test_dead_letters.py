"""From a failed record to its letter, and what happens while no sink takes it."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.errors import PipelineStopped
from outboxd.records import Headers, Letter, Record, TopicPartition, Verdict
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import ListChain, Rig, ScriptedHandler, eventually, rule, settings_of

TP = TopicPartition("orders", 0)
NO_RETRY = [rule(Verdict.DEAD_LETTER, "ValueError")]


async def bad_value_fails(record: Record) -> None:
    if record.raw_value == b"bad":
        raise ValueError("bad")


@virtual_time
async def test_a_dead_lettered_record_is_done_and_the_next_of_its_key_is_handled() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(bad_value_fails), rules=NO_RETRY)
    headers = Headers([("a", b"1"), ("a", None), ("b", b"")])
    cluster.produce("orders", b"k", b"bad", headers=headers)
    cluster.produce("orders", b"k", b"good")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 2)
    letter = rig.chain.letters[0]
    assert (letter.key, letter.value, letter.headers, letter.offset) == (b"k", b"bad", headers, 0)
    assert (letter.group, letter.pipeline, letter.handler, letter.attempts) == ("shop", "shop", "python:shop", 1)
    assert letter.rule.startswith("rules[0]")
    assert [record.offset for record in rig.handler.calls] == [0, 1]
    await rig.stop()


@pytest.mark.fixes("B048")
@virtual_time
async def test_while_no_sink_takes_a_letter_only_the_chain_is_tried_again_and_the_offset_waits() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(bad_value_fails), rules=NO_RETRY)
    rig.chain.is_down = True
    cluster.produce("orders", b"k", b"bad")
    cluster.produce("orders", b"k", b"good")
    cluster.produce("orders", b"other", b"good")
    await rig.start()
    await asyncio.sleep(300)
    assert cluster.offset_of("shop", TP) == 0
    assert [record.offset for record in rig.handler.calls] == [0, 2]
    assert rig.stall() == "chain_exhausted"
    assert 8 <= rig.chain.tries <= 30
    rig.chain.is_down = False
    await eventually(lambda: cluster.offset_of("shop", TP) == 3)
    assert [record.offset for record in rig.handler.calls] == [0, 2, 1]
    assert len(rig.chain.letters) == 1
    assert rig.stall() is None
    await rig.stop()


@virtual_time
async def test_each_try_carries_the_same_letter() -> None:
    seen: list[Letter] = []

    class Keeping(ListChain):
        async def write(self, letters):  # type: ignore[no-untyped-def]
            seen.extend(letters)
            return await super().write(letters)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(bad_value_fails), rules=NO_RETRY, chain=Keeping())
    rig.chain.is_down = True
    cluster.produce("orders", b"k", b"bad")
    await rig.start()
    await asyncio.sleep(60)
    assert len(seen) > 3
    assert all(letter is seen[0] for letter in seen)
    await rig.cancel()


@virtual_time
async def test_a_letter_that_every_sink_refuses_does_not_hold_up_the_others() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    rig = Rig(cluster, handler=ScriptedHandler(bad_value_fails), rules=NO_RETRY)
    rig.chain.refuses = lambda letter: letter.partition == 0
    cluster.produce("orders", b"a", b"bad", partition=0)
    for index in range(10):
        cluster.produce("orders", b"%d" % index, b"bad", partition=1)
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TopicPartition("orders", 1)) == 10, 20)
    assert cluster.offset_of("shop", TP) == 0
    assert rig.stall() == "letter_refused"
    await rig.cancel()


@virtual_time
async def test_a_sink_that_hangs_costs_healthy_records_nothing() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(
        cluster, handler=ScriptedHandler(bad_value_fails), rules=NO_RETRY, settings=settings_of({"concurrency": 2})
    )
    rig.chain.hangs = True
    for index in range(10):
        cluster.produce("orders", b"bad%d" % index, b"bad")
    for index in range(100):
        cluster.produce("orders", b"%d" % index, b"good")
    await rig.start()
    assert len(rig.handler.done) == 100
    await rig.cancel()


@virtual_time
async def test_with_exhausted_stop_the_pipeline_stops_and_the_offset_stays() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of(exhausted="stop")
    rig = Rig(cluster, handler=ScriptedHandler(bad_value_fails), rules=NO_RETRY, settings=settings)
    rig.chain.is_down = True
    cluster.produce("orders", b"k", b"bad")
    await rig.start()
    assert rig.task is not None
    with pytest.raises(PipelineStopped, match="chain_exhausted"):
        await rig.task
    assert cluster.offset_of("shop", TP) in (None, 0)


@virtual_time
async def test_a_record_that_comes_again_after_its_letter_was_written_has_the_same_letter() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(bad_value_fails), rules=NO_RETRY)
    cluster.produce("orders", b"k", b"bad")
    await rig.start()
    await eventually(lambda: rig.chain.letters)
    rig.member.crash()
    await rig.cancel()
    assert cluster.offset_of("shop", TP) in (None, 0)
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    assert len(rig.handler.calls) == 2
    assert len(rig.chain.letters) == 1
    await rig.stop()
    assert rig.chain.is_closed

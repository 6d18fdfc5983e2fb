"""Handlers and clusters that do what they should not, and must harm nobody but themselves."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from outboxd.api import HandlerContext
from outboxd.errors import BrokerDenied, HandlerTimeout
from outboxd.pipeline.consumer.partition import AssignedPartition, Bounds
from outboxd.pipeline.consumer.progress import Progress
from outboxd.pipeline.consumer.start_position import StartPositions
from outboxd.ports import TopicInfo
from outboxd.records import Record, TopicPartition, Verdict
from outboxd.testing.fakes.clock import FakeClock, SeededRandom, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from outboxd.testing.fakes.letters import FakeLetters
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually, leftover_tasks, settings_of
from tests.unit.letters.doubles import a_letter

TP = TopicPartition("orders", 0)


@virtual_time
async def test_a_replay_that_is_postponed_takes_the_later_letters_of_its_key_along() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    home = FakeLetters(FakeClock(), SeededRandom(1))
    verdicts = [Verdict.PAUSE]

    async def answer(record: Record) -> Verdict | None:
        return verdicts.pop() if verdicts else None

    rig = Rig(cluster, handler=ScriptedHandler(answer), letter_store=home)
    letters = [
        dataclasses.replace(a_letter(offset, key=b"k", pipeline="shop", group="shop"), topic="orders", partition=0)
        for offset in range(3)
    ]
    await home.store(letters, sink="home")
    await home.create_replay([letter.id for letter in letters], actor="me")
    await rig.start()
    await asyncio.sleep(60)
    assert [record.offset for record in rig.handler.calls] == [0, 0, 1, 2]
    await rig.stop()


@virtual_time
async def test_the_time_of_an_outage_is_charged_to_no_record() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    is_out = False
    left = 4

    async def answer(record: Record) -> Verdict | None:
        nonlocal left
        if is_out:
            return Verdict.PAUSE
        if record.value == b"a" and left:
            left -= 1
            raise ValueError("not yet")
        return None

    errors = {"retry": {"attempts": 10, "elapsed": "5m", "initial": "40s", "max": "60s"}}
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of(errors=errors))
    await rig.start()
    cluster.produce("orders", b"ka", b"a")
    await asyncio.sleep(32)  # the charge is older than the breaker's window
    is_out = True
    cluster.produce("orders", b"kb", b"b")
    await asyncio.sleep(3600)
    is_out = False
    await eventually(lambda: cluster.offset_of("shop", TP) == 2, 600)
    assert rig.chain.letters == []
    await rig.stop()


@virtual_time
async def test_a_cancellation_that_a_handler_leaves_behind_hits_no_other_record() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})

    async def answer(record: Record) -> None:
        if record.value == b"bad":
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            return
        await asyncio.sleep(0.01)

    rig = Rig(
        cluster,
        handler=ScriptedHandler(answer),
        settings=settings_of({"concurrency": 1}, errors={"retry": {"attempts": 1}}),
    )
    await rig.start()
    cluster.produce("orders", b"a", b"bad")
    cluster.produce("orders", b"b", b"good")
    await eventually(lambda: cluster.offset_of("shop", TP) == 2)
    assert rig.chain.letters == []
    assert [record.value for record in rig.handler.done] == [b"bad", b"good"]
    await rig.stop()


@virtual_time
async def test_a_handler_that_swallows_its_cancellation_is_cancelled_again_and_shown() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    swallowed = 0

    async def answer(record: Record) -> None:
        nonlocal swallowed
        while swallowed < 4:
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                swallowed += 1
        await asyncio.sleep(1e6)

    rig = Rig(
        cluster,
        handler=ScriptedHandler(answer),
        settings=settings_of(timeout="2s", errors={"retry": {"attempts": 1}}),
    )
    await rig.start()
    cluster.produce("orders", b"k", b"v")
    await asyncio.sleep(12)
    stall = rig.run.health().stall
    assert stall is not None
    assert stall.reason == "handler_stuck"
    await eventually(lambda: len(rig.chain.letters) == 1)
    assert rig.chain.letters[0].error_class == f"{HandlerTimeout.__module__}.{HandlerTimeout.__qualname__}"
    await rig.stop()


class _Wrapped:
    """A coroutine behind a plain function, as a decorator leaves it."""

    def __init__(self) -> None:
        self.calls = 0

    async def _real(self, record: Record, context: HandlerContext) -> None:
        self.calls += 1
        await asyncio.sleep(1e6)

    def handle(self, record: Record, context: HandlerContext) -> Any:
        return self._real(record, context)


@virtual_time
async def test_a_coroutine_behind_a_plain_function_keeps_the_deadline() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    handler = _Wrapped()
    rig = Rig(cluster, handler=handler, settings=settings_of(timeout="2s", errors={"retry": {"attempts": 2}}))
    await rig.start()
    cluster.produce("orders", b"k", b"v")
    await eventually(lambda: len(rig.chain.letters) == 1, 60)
    assert handler.calls == 2
    assert rig.chain.letters[0].error_class.endswith("HandlerTimeout")
    await rig.stop()


@virtual_time
async def test_a_client_that_may_not_join_is_given_back() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster)
    stopped: list[bool] = []
    make = cluster.consumer

    def consumer(**arguments: Any) -> Any:
        port = make(**arguments)
        start, stop = port.start, port.stop

        async def denied(listener: Any) -> None:
            await start(listener)
            raise BrokerDenied("not authorized")

        async def noted() -> None:
            stopped.append(True)
            await stop()

        port.start, port.stop = denied, noted  # type: ignore[method-assign]
        return port

    cluster.consumer = consumer  # type: ignore[method-assign]
    with pytest.raises(BrokerDenied):
        await rig.run.run()
    assert stopped == [True]
    assert leftover_tasks() == []


@virtual_time
async def test_a_member_that_the_group_refuses_fails_its_pipeline() -> None:
    rig = Rig(FakeCluster(FakeClock(), topics={"orders": 1}))
    running = asyncio.create_task(rig.run.run())
    await asyncio.sleep(1)
    membership = rig.run._membership
    assert membership is not None
    membership.assignment.refused(BrokerDenied("no ACL on the group"))
    with pytest.raises(BrokerDenied):
        await running


@virtual_time
async def test_everybody_who_waits_for_a_partition_is_woken() -> None:
    partition = AssignedPartition(TP, epoch=1, bounds=Bounds(records=10, size=10**6), shared_by=1, now=0)
    partition.began()
    waiting = [asyncio.create_task(partition.idle()) for _ in range(3)]
    await asyncio.sleep(1)
    partition.ended()
    async with asyncio.timeout(1):
        await asyncio.gather(*waiting)


def test_a_commit_from_before_the_topic_was_made_anew_says_nothing_about_the_new_one() -> None:
    progress: Progress[None] = Progress(0, None)
    progress.reached(1000)
    before = progress.incarnation
    assert progress.committable() == 1000
    progress.restart(0)
    assert progress.incarnation != before
    progress.took(0, None)
    progress.done(0)
    assert progress.committable() == 1


class _Log:
    """A partition's offsets and the group's commit, as a port and an admin tell them."""

    def __init__(self) -> None:
        self.begin, self.end = 0, 500
        self.commit: tuple[int, str] | None = None

    async def committed(self, tp: TopicPartition) -> tuple[int, str] | None:
        return self.commit

    async def beginning_offset(self, tp: TopicPartition) -> int:
        return self.begin

    async def end_offset(self, tp: TopicPartition) -> int:
        return self.end

    async def topic(self, name: str) -> TopicInfo:
        return TopicInfo(name=name, partitions=1)


async def test_a_topic_that_was_made_anew_is_read_from_its_start_also_with_latest() -> None:
    log: Any = _Log()
    starts = StartPositions(policy="latest", group="g", admin=log)
    assert (await starts.find(log, TP)).offset == 500  # the first sight
    log.commit = (900, "")
    assert (await starts.find(log, TP)).offset == 900
    log.commit, log.end = None, 700  # deleted with its offsets, made anew, and filled already
    assert (await starts.find(log, TP)).offset == 0

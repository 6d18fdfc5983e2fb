"""Failing calls: attempts, waits, deadlines, and handlers that raise what they should not."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from outboxd.errors import PipelineStopped
from outboxd.records import Record, Stage, TopicPartition, Verdict
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually, rule, settings_of

TP = TopicPartition("orders", 0)


def failing_handler(error: BaseException, *, offset: int = 0, times: int = 10**9) -> ScriptedHandler:
    left = [times]

    async def answer(record: Record) -> None:
        if record.offset == offset and left[0]:
            left[0] -= 1
            raise error

    return ScriptedHandler(answer)


@pytest.mark.parametrize("attempts", [1, 2, 5])
def test_attempts_counts_calls_in_total(attempts: int) -> None:
    @virtual_time
    async def story() -> None:
        cluster = FakeCluster(FakeClock(), topics={"orders": 1})
        handler = failing_handler(ValueError("no"))
        rig = Rig(cluster, handler=handler, settings=settings_of(errors={"retry": {"attempts": attempts}}))
        cluster.produce("orders", b"k", b"v")
        await rig.start()
        await eventually(lambda: cluster.offset_of("shop", TP) == 1)
        assert [record.attempt for record in handler.calls] == list(range(1, attempts + 1))
        assert rig.chain.letters[0].attempts == attempts
        assert "attempts used up" in rig.chain.letters[0].rule
        await rig.stop()

    story()


@pytest.mark.fixes("B016")
@virtual_time
async def test_a_failing_record_is_called_after_growing_waits_and_never_in_a_hot_loop() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    times: list[float] = []

    async def answer(record: Record) -> None:
        times.append(asyncio.get_running_loop().time())
        raise ValueError("no")

    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of(errors={"retry": {"attempts": 5}}))
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await eventually(lambda: rig.chain.letters)
    assert [round(after - before, 3) for before, after in itertools.pairwise(times)] == [1, 2, 4, 8]
    await rig.stop()


@virtual_time
async def test_a_record_that_waits_blocks_only_its_key_and_no_worker() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    handler = failing_handler(ValueError("no"), times=3)
    rig = Rig(cluster, handler=handler, settings=settings_of({"concurrency": 1}))
    for key in (b"a", b"a", b"b", b"c"):
        cluster.produce("orders", key, b"v")
    await rig.start()
    await asyncio.sleep(0.5)
    assert handler.offsets() == [2, 3]
    assert rig.run.health().detail["retrying"] == 1
    await eventually(lambda: cluster.offset_of("shop", TP) == 4)
    assert handler.offsets() == [2, 3, 0, 1]
    assert rig.chain.letters == []
    await rig.stop()


@virtual_time
async def test_the_elapsed_limit_ends_retries() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    handler = failing_handler(ValueError("no"))
    retry = {"attempts": 100, "elapsed": "10s", "max": "2s"}
    rig = Rig(cluster, handler=handler, settings=settings_of(errors={"retry": retry}))
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await eventually(lambda: rig.chain.letters)
    assert 5 <= len(handler.calls) <= 8
    assert "elapsed" in rig.chain.letters[0].rule
    await rig.stop()


@virtual_time
async def test_a_handler_past_its_deadline_is_cancelled_and_fails_with_a_class_of_its_own() -> None:
    async def answer(record: Record) -> None:
        if record.offset == 0:
            await asyncio.sleep(3600)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of(errors={"retry": {"attempts": 2}}, timeout="2s")
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings)
    cluster.produce("orders", b"a", b"v")
    cluster.produce("orders", b"a", b"v")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 2, 10)
    assert rig.chain.letters[0].error_class == "outboxd.errors.HandlerTimeout"
    assert rig.handler.running == []
    await rig.stop()


@virtual_time
async def test_a_timeout_error_of_the_handlers_own_stays_what_it_is() -> None:
    async def answer(record: Record) -> None:
        async with asyncio.timeout(0.5):
            await asyncio.sleep(3600)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer), rules=[rule(Verdict.DEAD_LETTER, "TimeoutError")])
    cluster.produce("orders", b"a", b"v")
    await rig.start()
    await eventually(lambda: rig.chain.letters)
    assert rig.chain.letters[0].error_class == "TimeoutError"
    await rig.stop()


@virtual_time
async def test_each_call_has_the_whole_deadline_however_short_the_ones_before() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(1.5)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of({"concurrency": 1}, timeout="2s"))
    for _ in range(10):
        cluster.produce("orders", b"a", b"v")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 10)
    assert len(rig.handler.calls) == 10
    await rig.stop()


@pytest.mark.fixes("B061")
@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        BaseException("odd"),
        StopIteration(),
    ],
)
def test_whatever_a_handler_raises_is_a_failure_of_its_record(error: BaseException) -> None:
    @virtual_time
    async def story() -> None:
        cluster = FakeCluster(FakeClock(), topics={"orders": 1})
        rig = Rig(
            cluster,
            handler=failing_handler(error),
            settings=settings_of({"concurrency": 1}, errors={"retry": {"attempts": 2}}),
        )
        for key in (b"a", b"a", b"b"):
            cluster.produce("orders", key, b"v")
        await rig.start()
        await eventually(lambda: cluster.offset_of("shop", TP) == 3)
        assert len(rig.chain.letters) == 1
        assert rig.task is not None
        assert not rig.task.done()
        await rig.stop()

    story()


@virtual_time
async def test_a_handler_that_cancels_its_own_task_fails_its_record_and_no_other() -> None:
    async def answer(record: Record) -> None:
        if record.offset == 0:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of({"concurrency": 1}, errors={"retry": {"attempts": 2}})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings)
    for key in (b"a", b"a"):
        cluster.produce("orders", key, b"v")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 2)
    assert len(rig.chain.letters) == 1
    await rig.stop()


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), RecursionError(), ValueError()])
def test_what_a_codec_raises_is_a_dead_letter_at_stage_decode_without_a_call(error: Exception) -> None:
    @virtual_time
    async def story() -> None:
        cluster = FakeCluster(FakeClock(), topics={"orders": 1})
        rig = Rig(cluster)
        rig.codec.bad.add(b"\xff")
        rig.codec.raises = error
        cluster.produce("orders", b"a", b"\xff")
        cluster.produce("orders", b"a", b"fine")
        await rig.start()
        await eventually(lambda: cluster.offset_of("shop", TP) == 2)
        letter = rig.chain.letters[0]
        assert (letter.stage, letter.value, letter.attempts) == (Stage.DECODE, b"\xff", 0)
        assert rig.handler.offsets() == [1]
        await rig.stop()

    story()


@virtual_time
async def test_a_value_that_is_no_verdict_is_a_failure() -> None:
    async def answer(record: Record) -> Verdict | None:
        return 3  # type: ignore[return-value]

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    settings = settings_of(errors={"retry": {"attempts": 1}})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings)
    cluster.produce("orders", b"a", b"v")
    await rig.start()
    await eventually(lambda: rig.chain.letters)
    assert rig.chain.letters[0].error_class == "TypeError"
    await rig.stop()


@virtual_time
async def test_the_verdict_stop_fails_the_pipeline_and_keeps_the_offset() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    handler = failing_handler(ValueError("halt"), offset=1)
    rig = Rig(cluster, handler=handler, rules=[rule(Verdict.STOP, "ValueError")])
    for _ in range(3):
        cluster.produce("orders", b"a", b"v")
    await rig.start()
    assert rig.task is not None
    with pytest.raises(PipelineStopped, match="orders-0@1"):
        await rig.task
    assert cluster.offset_of("shop", TP) == 1
    assert rig.chain.letters == []
    assert rig.member.is_stopped


@pytest.mark.fixes("B015")
@virtual_time
async def test_a_plain_handler_runs_in_the_executor() -> None:
    class Plain:
        def __init__(self) -> None:
            self.done: list[Record] = []

        def handle(self, record: Record, context: object) -> None:
            time.sleep(0)
            self.done.append(record)

    class Counting:
        calls = 0

        async def run(self, function, *arguments):  # type: ignore[no-untyped-def]
            self.calls += 1
            await asyncio.sleep(0.01)
            return function(*arguments)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    executor = Counting()
    rig = Rig(cluster, handler=Plain(), executor=executor)
    cluster.produce("orders", b"a", b"v")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    assert executor.calls == 1
    await rig.stop()


@virtual_time
async def test_a_plain_handler_past_its_deadline_keeps_its_key_and_shows_as_stuck() -> None:
    class Plain:
        def handle(self, record: Record, context: object) -> None:
            return None

    class Slow:
        async def run(self, function, *arguments):  # type: ignore[no-untyped-def]
            await asyncio.sleep(100)
            return function(*arguments)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=Plain(), executor=Slow(), settings=settings_of(timeout="2s"))
    cluster.produce("orders", b"a", b"v")
    await rig.start()
    await asyncio.sleep(5)
    assert rig.stall() == "handler_stuck"
    await eventually(lambda: cluster.offset_of("shop", TP) == 1, 200)
    assert rig.stall() is None
    await rig.stop()

"""The port `Executor`: plain functions off the event loop, their results, errors and context."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from outboxd.ports import Executor
from outboxd.runtime.executor import ThreadExecutor
from outboxd.testing.fakes.clock import InlineExecutor
from tests.conformance.telling import Stage, conforms, in_real_time, in_virtual_time

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")


@asynccontextmanager
async def inline() -> AsyncIterator[Executor]:
    yield InlineExecutor()


@asynccontextmanager
async def one_thread() -> AsyncIterator[Executor]:
    executor = ThreadExecutor(threads=1, name="conformance")
    yield executor
    executor.close()


@pytest.fixture(params=["double", "thread"])
def executor(request: pytest.FixtureRequest) -> Stage:
    return in_virtual_time(inline) if request.param == "double" else in_real_time(one_thread)


@conforms
async def test_a_function_gets_its_arguments_and_gives_its_result(executor: Executor) -> None:
    assert await executor.run(divmod, 17, 5) == (3, 2)
    marker = object()
    assert await executor.run(lambda: marker) is marker
    assert await executor.run([].append, marker) is None  # type: ignore[func-returns-value]  # that it is None is the point


@conforms
async def test_what_a_function_raises_its_caller_gets(executor: Executor) -> None:
    for error in (ValueError("no"), TimeoutError("slow"), asyncio.CancelledError()):

        def fail(error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error)) as caught:
            await executor.run(fail)
        assert caught.value.args == error.args


@conforms
async def test_stop_iteration_is_an_error_like_any_other(executor: Executor) -> None:
    async with asyncio.timeout(10):
        with pytest.raises(RuntimeError, match="StopIteration"):
            await executor.run(next, iter(()))


@conforms
async def test_a_function_runs_in_a_copy_of_its_callers_context(executor: Executor) -> None:
    def meet() -> str:
        before = WHO.get()
        WHO.set("the function")
        return before

    WHO.set("the caller")
    assert await executor.run(meet) == "the caller"
    assert WHO.get() == "the caller"
    assert await executor.run(meet) == "the caller"


@conforms
async def test_functions_of_one_thread_run_one_after_another_in_the_order_of_their_calls(executor: Executor) -> None:
    ran: list[str] = []

    def work(number: int) -> None:
        ran.append(f"{number} begins")
        time.sleep(0.001)
        ran.append(f"{number} ends")

    await asyncio.gather(*(executor.run(work, number) for number in range(6)))
    assert ran == [f"{number} {what}" for number in range(6) for what in ("begins", "ends")]


@conforms
async def test_a_function_whose_caller_is_cancelled_runs_to_its_end_or_not_at_all(executor: Executor) -> None:
    for patience in range(4):
        ran: list[str] = []

        def work(ran: list[str] = ran) -> None:
            ran.append("begins")
            time.sleep(0.005)
            ran.append("ends")

        calling = asyncio.ensure_future(executor.run(work))
        for _ in range(patience):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait({calling})
        await executor.run(lambda: None)  # behind it in the same thread
        assert ran in ([], ["begins", "ends"])


async def test_threads_let_the_event_loop_run_on() -> None:
    executor = ThreadExecutor(threads=2, name="conformance")
    met = threading.Barrier(3)  # of two threads and the loop's own
    calls = [asyncio.ensure_future(executor.run(met.wait, 10)) for _ in range(2)]
    async with asyncio.timeout(10):
        while met.n_waiting < 2:
            await asyncio.sleep(0.001)
    turns = [met.wait(10), *await asyncio.gather(*calls)]
    assert sorted(turns) == [0, 1, 2]
    executor.close()

"""The event loop of the process: contained exits, uvloop and plain asyncio alike; and the watch over its lag."""

from __future__ import annotations

import asyncio
import time

import pytest

from outboxd.runtime.health import LoopWatch
from outboxd.runtime.loop import log_unhandled, loop_factory, run
from outboxd.telemetry.pipelines import EventLoopBlocked
from tests.unit.runtime.doubles import Recorder


@pytest.fixture(params=["asyncio", "uvloop"], autouse=True)
def _loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "asyncio":
        monkeypatch.setenv("OUTBOXD_EVENT_LOOP", "asyncio")
        assert loop_factory() is None
    else:
        pytest.importorskip("uvloop")
        monkeypatch.delenv("OUTBOXD_EVENT_LOOP", raising=False)
        assert loop_factory() is not None


@pytest.mark.fixes("B061")
@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_task_that_exits_does_not_take_the_process_with_it(error: BaseException) -> None:
    async def guilty() -> None:
        await asyncio.sleep(0)
        raise error

    async def main() -> tuple[str, int]:
        ticks = 0
        task = asyncio.create_task(guilty())
        for _ in range(10):
            await asyncio.sleep(0)
            ticks += 1
        return type(task.exception()).__name__, ticks

    assert run(main()) == (type(error).__name__, 10)


def test_an_exit_of_main_itself_is_an_exit() -> None:
    async def main() -> None:
        raise SystemExit(5)

    with pytest.raises(SystemExit) as caught:
        run(main())
    assert caught.value.code == 5


def test_an_error_that_nobody_awaits_is_logged_and_the_loop_goes_on() -> None:
    logged: list[tuple[str, dict[str, object]]] = []

    class Log:
        def error(self, event: str, **fields: object) -> object:
            logged.append((event, fields))
            return None

        debug = info = warning = error

    def boom() -> None:
        raise ValueError("in a callback")

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(log_unhandled(Log()))
        loop.call_soon(boom)
        await asyncio.sleep(0.01)
        return "went on"

    assert run(main()) == "went on"
    assert logged[0][0] == "unhandled_error"


def test_whatever_holds_the_loop_is_named() -> None:
    telemetry = Recorder()

    def slow_handler() -> None:
        time.sleep(0.5)

    async def main() -> None:
        watch = LoopWatch(telemetry, blocked_after=0.1)
        watch.open()
        await asyncio.sleep(0.05)
        slow_handler()
        await asyncio.sleep(0.3)
        await watch.close()

    run(main())
    blocked = [event for event in telemetry.events if isinstance(event, EventLoopBlocked)]
    assert len(blocked) == 1
    assert "slow_handler" in (blocked[0].stack or "")

"""Virtual time: an event loop that jumps to its next timer instead of waiting, and the clock and chance that go with it."""

from __future__ import annotations

import asyncio
import functools
import random
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, ParamSpec, TypeVar, TypeVarTuple
from uuid import UUID

__all__ = ["FakeClock", "InlineExecutor", "SeededRandom", "VirtualTimeLoop", "virtual_time"]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_RESOLUTION = 1e-9


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: gives the time that it would have waited to the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if events:
            return events
        if timeout is None:
            raise RuntimeError("every task waits for something that will never happen")
        self.now += max(0.0, timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: `time()` jumps to the next timer when nothing else can run.

    Only for code that waits for timers and for itself: sockets and threads are not waited for.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds."""
        return self._jumping.now

    def call_later(
        self, delay: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As ever; but a wait that is lost in rounding still ends later, or it would be waited for without end."""
        if 0 < delay < _RESOLUTION:
            delay = _RESOLUTION
        return super().call_later(delay, callback, *args, context=context)

    def jump(self, seconds: float) -> None:
        """Let time pass at once, without anybody running meanwhile: what a stopped process sees when it goes on."""
        self._jumping.now += seconds


def virtual_time(story: Callable[_P, Coroutine[Any, Any, _T]]) -> Callable[_P, _T]:
    """Run a coroutine function in a `VirtualTimeLoop` of its own: a decorator for tests."""

    @functools.wraps(story)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            return runner.run(story(*args, **kwargs))

    return run


class FakeClock:
    """The clock port on the running loop's time; ``skew`` shifts its wall time."""

    def __init__(self, skew: timedelta = timedelta()) -> None:
        self.skew = skew

    def monotonic(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """The wall time that goes with it."""
        return _EPOCH + timedelta(seconds=self.monotonic()) + self.skew

    async def sleep(self, seconds: float) -> None:
        """Wait in the loop's time."""
        await asyncio.sleep(seconds)


class SeededRandom:
    """The random port: the same seed gives the same chances."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high]."""
        return self._random.uniform(low, high)

    def token(self) -> str:
        """Eight hex digits."""
        return f"{self._random.getrandbits(32):08x}"

    def uuid(self) -> UUID:
        """A uuid of version 4."""
        return UUID(int=self._random.getrandbits(128), version=4)


class InlineExecutor:
    """The executor port without threads: the function runs where it stands."""

    async def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call it in a copy of the caller's context and give its result."""
        await asyncio.sleep(0)
        return copy_context().run(function, *arguments)

"""The event loop of a simulation: virtual time, processes that can be stopped alone, and the same order in every run.

What a task or timer belongs to is told by its context: whatever is started from within a process carries it along.
While a process is held nothing of it runs; what would have run waits and runs, in its order, when it is let go.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, Protocol, TypeVar, TypeVarTuple

from outboxd.testing.fakes.clock import VirtualTimeLoop

__all__ = ["OWNER", "Holds", "SimulatedTask", "SimulationLoop", "StuckSimulation"]

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")
_MOST_CALLBACKS = 1_000_000
"""More than this in one run means that something spins."""


class Holds(Protocol):
    """A process as the loop sees it."""

    is_held: bool

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep what may not run now."""
        ...


OWNER: ContextVar[Holds | None] = ContextVar("simulated process", default=None)
"""The process that the running code belongs to; None outside of all of them."""


class StuckSimulation(BaseException):
    """The simulation makes no headway: callbacks without end, or nothing left that could ever happen."""


def _context(handle: asyncio.Handle) -> Context:
    return handle._context  # type: ignore[attr-defined,no-any-return]


class _Handle(asyncio.Handle):
    __slots__ = ()

    def _run(self) -> None:
        owner = _context(self).get(OWNER)
        if owner is not None and owner.is_held:
            owner.hold(self)
            return
        super()._run()


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ()

    def _run(self) -> None:
        owner = _context(self).get(OWNER)
        if owner is not None and owner.is_held:
            owner.hold(self)
            return
        super()._run()


class SimulatedTask(asyncio.Task[_T]):
    """A task whose hash is its number, so that sets of tasks have the same order in every run."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, _T], *, loop: SimulationLoop, context: Context | None = None
    ) -> None:
        self.number = loop.next_number()
        self.owner = OWNER.get() if context is None else context.get(OWNER)
        super().__init__(coroutine, loop=loop, context=context)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class _SimulatedFuture(asyncio.Future[Any]):
    def __init__(self, *, loop: SimulationLoop) -> None:
        self.number = loop.next_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class SimulationLoop(VirtualTimeLoop):
    """See the module. Callbacks of held processes wait; a run that spins ends with StuckSimulation."""

    def __init__(self) -> None:
        self._numbers = 0
        self.callbacks = 0
        self.most_callbacks = _MOST_CALLBACKS
        super().__init__()
        self.set_task_factory(_make_task)

    def next_number(self) -> int:
        """A number that nothing else has."""
        self._numbers += 1
        return self._numbers

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As ever, but by the owner's leave."""
        self.callbacks += 1
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)  # type: ignore[attr-defined]
        return handle

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As ever, but by the owner's leave."""
        timer = _TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._scheduled, timer)  # type: ignore[attr-defined]
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        """A future with a number for its hash."""
        return _SimulatedFuture(loop=self)

    def _run_once(self) -> None:
        # Here and not in a callback: an exception there is only reported.
        if self.callbacks > self.most_callbacks:
            self.callbacks = 0
            running = sorted(task.get_name() for task in asyncio.all_tasks(self))
            raise StuckSimulation(f"more than {self.most_callbacks} callbacks by {self.time():.3f} s: {running}")
        super()._run_once()  # type: ignore[misc]

    def again(self, handles: list[asyncio.Handle]) -> None:
        """Run what was held, in its order."""
        self._ready.extend(handles)  # type: ignore[attr-defined]


def _make_task(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, _T] | Generator[Any, None, _T],
    *,
    context: Context | None = None,
) -> asyncio.Task[_T]:
    assert isinstance(loop, SimulationLoop)
    assert asyncio.iscoroutine(coroutine)
    return SimulatedTask(coroutine, loop=loop, context=context)

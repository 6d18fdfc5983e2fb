"""Records that wait: one heap and one timer of the event loop, however many wait."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from outboxd.ports import Clock

__all__ = ["Timers"]

_T = TypeVar("_T")


class Timers(Generic[_T]):
    """Hands each item to ``on_due`` once its time has come, earliest first."""

    __slots__ = ("_clock", "_handle", "_heap", "_on_due", "_sequence")

    def __init__(self, clock: Clock, on_due: Callable[[_T], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._heap: list[tuple[float, int, _T]] = []
        self._sequence = 0
        self._handle: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def schedule(self, item: _T, delay: float) -> None:
        """Hand the item over after so many seconds."""
        self._sequence += 1
        due = self._clock.monotonic() + max(delay, 0.0)
        heapq.heappush(self._heap, (due, self._sequence, item))
        if self._heap[0][1] == self._sequence:
            self._arm()

    def keep(self, is_wanted: Callable[[_T], bool]) -> None:
        """Forget every item that is not wanted any more."""
        self._heap = [waiting for waiting in self._heap if is_wanted(waiting[2])]
        heapq.heapify(self._heap)
        self._arm()

    def close(self) -> None:
        """Forget everything."""
        self._heap.clear()
        self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            delay = max(0.0, self._heap[0][0] - self._clock.monotonic())
            self._handle = asyncio.get_running_loop().call_later(delay, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            self._on_due(heapq.heappop(self._heap)[2])
        self._arm()

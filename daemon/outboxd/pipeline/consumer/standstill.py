"""How long this process stood still (SIGSTOP, a suspended machine, a blocked event loop): time that is no handler's fault."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["Standstill"]

_EVERY: Final = 1.0
_NOTICED: Final = 0.5
"""A tick that comes later than this came to a process that did not run."""


class Standstill:
    """Counts the seconds by which its ticks come late. Ticks are callbacks, due before any deadline that passed with them."""

    __slots__ = ("_due", "_timer", "total")

    def __init__(self) -> None:
        self.total = 0.0
        """Seconds so far."""
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin; harmless when it has begun."""
        if self._timer is None:
            self._arm(loop)

    def close(self) -> None:
        """End."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + _EVERY
        self._timer = loop.call_at(self._due, self._tick, loop)

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        late = loop.time() - self._due
        if late > _NOTICED:
            self.total += late
        self._arm(loop)

"""Wakes whoever waits for something to change. A bell says only that it is worth asking again, never what happened."""

from __future__ import annotations

import asyncio

__all__ = ["Bell"]


class Bell:
    """Read ``count`` before asking, then wait for it to move: nothing that happens in between is missed."""

    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Something changed."""
        self.count += 1
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, count: int, seconds: float | None = None) -> None:
        """Return once it has rung since ``count``, or after so many seconds."""
        if self.count != count:
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await asyncio.wait((waiter,), timeout=seconds)
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

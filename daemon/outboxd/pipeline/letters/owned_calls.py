"""Calls of plugins under a total deadline: what ignores its cancellation stays owned here, and its number bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from outboxd.errors import SinkUnavailable

__all__ = ["OwnedCalls"]

_T = TypeVar("_T")
_MOST_STRAYS: Final = 16


class OwnedCalls:
    """Runs a plugin's coroutines, each for at most its deadline.

    ``asyncio.timeout`` alone would wait as long as the plugin takes to honour its cancellation, which may be for ever.
    """

    __slots__ = ("_name", "_on_late", "_strays")

    def __init__(self, name: str, on_late: Callable[[], None] = lambda: None) -> None:
        self._name = name
        self._on_late = on_late
        self._strays: set[asyncio.Task[object]] = set()

    @property
    def strays(self) -> int:
        """Calls that were given up and have not ended yet."""
        return len(self._strays)

    async def run(self, verb: Callable[[], Awaitable[_T]], seconds: float) -> _T:
        """What ``verb()`` gives or raises; SinkUnavailable once ``seconds`` have passed.

        Also raises SinkUnavailable, without calling, while too many earlier calls never ended. Cancelled, it cancels the
        call and does not wait for it.
        """
        if len(self._strays) >= _MOST_STRAYS:
            raise SinkUnavailable(
                f"{len(self._strays)} calls of {self._name} were given up and never returned",
                suggestion="the plugin ignores cancellation; restart the daemon and mend the plugin",
            )
        task: asyncio.Task[_T] = asyncio.ensure_future(_as_coroutine(verb))
        task.set_name(self._name)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            self._give_up(task)
            raise
        if not done:
            self._give_up(task)
            raise SinkUnavailable(f"{self._name} did not answer within {seconds:g} s")
        if task.cancelled():
            # Some clients cancel themselves on a lost connection; nobody cancelled us.
            raise SinkUnavailable(f"{self._name} ended its own call as cancelled")
        return task.result()

    async def close(self, seconds: float) -> int:
        """Cancel what is left and wait for it for at most ``seconds``; give how many calls still have not ended."""
        for task in self._strays:
            task.cancel()
        if self._strays:
            await asyncio.wait(set(self._strays), timeout=seconds)
        return len(self._strays)

    def _give_up(self, task: asyncio.Task[_T]) -> None:
        if task.done():
            _retrieve(task)
            return
        task.cancel()
        self._strays.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self._strays.discard(task)
        if _retrieve(task):
            self._on_late()


async def _as_coroutine(verb: Callable[[], Awaitable[_T]]) -> _T:
    return await verb()


def _retrieve(task: asyncio.Task[_T]) -> bool:
    """Look at the outcome so that the loop does not complain of it; True for an answer."""
    return not task.cancelled() and task.exception() is None

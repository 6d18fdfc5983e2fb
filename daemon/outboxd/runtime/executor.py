"""Threads for blocking functions, behind the port `Executor`."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

__all__ = ["ThreadExecutor"]

_T = TypeVar("_T")


class ThreadExecutor:
    """A pool of up to ``threads`` threads of one owner; ``name`` shows in thread lists and stack dumps.

    The owner's size is what it may have in flight: a pool shared among pipelines would let one that is stuck hold up
    the others.
    """

    def __init__(self, *, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call ``function(*arguments)`` in a thread, with the caller's context variables (trace, log fields)."""
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(context.run, _contained, function, *arguments))

    def close(self) -> None:
        """Take no more calls. A function that still runs keeps its thread; nobody waits for it."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _contained(function: Callable[..., _T], *arguments: object) -> _T:
    """A future cannot carry StopIteration: it would never be done, and its awaiter would wait for ever."""
    try:
        return function(*arguments)
    except StopIteration as error:
        raise RuntimeError("the function raised StopIteration") from error

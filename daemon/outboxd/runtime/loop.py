"""The event loop of the process: uvloop where it is installed, and what happens to errors that nobody awaits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from outboxd.api.context import Logger

__all__ = ["log_unhandled", "loop_factory", "run"]

_T = TypeVar("_T")
_ENVIRONMENT: Final = "OUTBOXD_EVENT_LOOP"
_LAST_WORD: Final = 2.0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop; None for plain asyncio: without uvloop, or with `OUTBOXD_EVENT_LOOP=asyncio`."""
    if os.environ.get(_ENVIRONMENT, "") == "asyncio":
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """Run ``main`` to its end in a new event loop and give its result.

    A task that raises `SystemExit` or `KeyboardInterrupt` makes asyncio leave the loop, whoever owns the task. The
    loop is entered again as long as ``main`` has not ended: its owner gets the error, the other pipelines go on.
    """
    loop = (loop_factory() or asyncio.new_event_loop)()
    asyncio.set_event_loop(loop)
    try:
        task = loop.create_task(main, name="main")
        while True:
            try:
                return loop.run_until_complete(task)
            except (SystemExit, KeyboardInterrupt):
                if task.done():
                    raise
    finally:
        loop.run_until_complete(_end_tasks())
        asyncio.set_event_loop(None)
        loop.close()


async def _end_tasks() -> None:
    """Cancel what is left and wait for a moment: a task that ignores it must not hold the exit up."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=_LAST_WORD)


def log_unhandled(logger: Logger) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """An exception handler for the loop: writes down what no task awaits; never ends the process."""

    def handle(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        task = context.get("task") or context.get("future")
        logger.error(
            "unhandled_error",
            description=context.get("message"),
            task=task.get_name() if isinstance(task, asyncio.Task) else None,
            exc_info=None if error is None else (type(error), error, error.__traceback__),
        )

    return handle

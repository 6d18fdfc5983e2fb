"""How late the event loop is, and who made it so: a metric, and a warning that names the culprit."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from types import FrameType
from typing import Final

from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.pipelines import EventLoopBlocked, EventLoopMeasured

__all__ = ["LoopWatch"]

_TICK: Final = 0.25
_REPORT: Final = 5.0
_FRAMES: Final = 6


class LoopWatch:
    """A task that ticks, and a thread that looks at the loop's stack when the tick is late.

    The thread is what can name the function: once the loop runs again, whatever held it has gone.
    """

    def __init__(self, telemetry: Telemetry, *, blocked_after: float = 1.0) -> None:
        self._telemetry = telemetry
        self._blocked_after = blocked_after
        self._ticked = time.monotonic()
        self._seen: tuple[str | None, str] | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to watch the running loop."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(
            target=self._watch, args=(loop, threading.get_ident()), name="loop watch", daemon=True
        )
        self._thread.start()
        self._task = asyncio.create_task(self._tick(), name="loop watch")

    async def close(self) -> None:
        """End task and thread."""
        self._ended.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, 1.0)

    async def _tick(self) -> None:
        worst = 0.0
        reported = time.monotonic()
        while True:
            self._ticked = before = time.monotonic()
            await asyncio.sleep(_TICK)
            now = time.monotonic()
            lag = max(0.0, now - before - _TICK)
            worst = max(worst, lag)
            if lag >= self._blocked_after:
                task, stack = self._seen or (None, None)
                self._telemetry.emit(EventLoopBlocked(seconds=lag, task=task, stack=stack))
            self._seen = None
            if now - reported >= _REPORT:
                self._telemetry.emit(EventLoopMeasured(lag=worst))
                worst, reported = 0.0, now

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._ended.wait(self._blocked_after / 4):
            if time.monotonic() - self._ticked < _TICK + self._blocked_after / 2 or self._seen is not None:
                continue
            frame = sys._current_frames().get(thread)  # noqa: SLF001  # the documented way to another thread's stack
            if frame is not None:
                task = asyncio.current_task(loop)
                self._seen = (None if task is None else task.get_name(), _place(frame))


def _place(frame: FrameType) -> str:
    """The innermost frames, outermost first."""
    frames = traceback.extract_stack(frame)[-_FRAMES:]
    return " > ".join(f"{each.name} ({each.filename}:{each.lineno})" for each in frames)

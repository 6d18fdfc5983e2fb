"""SIGTERM and SIGINT: the first asks for a drain, the second ends the process at once. SIGHUP: look at the files."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

__all__ = ["SignalWatch"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_FORCED: Final = 143


class SignalWatch:
    """Turns signals into one event; ``on_signal`` is told the name of each, ``on_hangup`` of each SIGHUP."""

    def __init__(self, on_signal: Callable[[str], None], *, on_hangup: Callable[[], None]) -> None:
        self.drain_wanted = asyncio.Event()
        self._on_signal = on_signal
        self._on_hangup = on_hangup

    def open(self) -> None:
        """Take the signals over from Python's own handlers."""
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._received, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    def close(self) -> None:
        """Give the signals back."""
        loop = asyncio.get_running_loop()
        for number in (*_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(number)

    def _received(self, number: signal.Signals) -> None:
        if self.drain_wanted.is_set():
            # Whoever sends a second signal has stopped waiting: nothing may hold the process up now.
            os._exit(_FORCED)
        self._on_signal(number.name)
        self.drain_wanted.set()

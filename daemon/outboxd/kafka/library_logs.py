"""Tames aiokafka's loggers: what they repeat is limited, and what they say while connecting is kept for the diagnosis.

A producer with a batch for a deleted topic logs 1,400 ERROR lines a second, a process without its broker 35; and the
reason of a refused login stands in the log only, never in the exception.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import aiokafka  # noqa: F401 - its modules create the loggers that are filtered here

__all__ = ["LibraryLogFilter", "captured_errors", "limit_library_logs"]

_PREFIX: Final = "aiokafka"

_capture: ContextVar[list[BaseException] | None] = ContextVar("outboxd_kafka_capture", default=None)


class LibraryLogFilter(logging.Filter):
    """Lets ``burst`` records of one message template pass in ``window`` seconds; then tells how many it held back.

    Also hands exceptions among a record's arguments to `captured_errors` of the same task.
    """

    def __init__(self, *, burst: int = 3, window: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._burst = burst
        self._window = window
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True when the record may be written; its text may have grown by the number of those held back."""
        self._hand_over(record)
        if record.levelno < logging.WARNING:
            return True
        template = (record.name, str(record.msg))
        with self._lock:
            now = self._clock()
            start, count = self._seen.get(template, (now, 0))
            if now - start >= self._window:
                held_back = max(0, count - self._burst)
                self._seen[template] = (now, 1)
            else:
                self._seen[template] = (start, count + 1)
                held_back = 0
                if count >= self._burst:
                    return False
        if held_back:
            record.msg = f"{record.getMessage()} (and {held_back} more like it in the last {now - start:.0f} s)"
            record.args = None
        return True

    @staticmethod
    def _hand_over(record: logging.LogRecord) -> None:
        captured = _capture.get()
        if captured is not None and isinstance(record.args, tuple):
            captured.extend(argument for argument in record.args if isinstance(argument, BaseException))


_FILTER: Final = LibraryLogFilter()


def limit_library_logs() -> None:
    """Put the filter on every logger of aiokafka. Calling it again changes nothing."""
    for name in list(logging.root.manager.loggerDict):
        if name == _PREFIX or name.startswith(f"{_PREFIX}."):
            logging.getLogger(name).addFilter(_FILTER)


@contextmanager
def captured_errors() -> Iterator[list[BaseException]]:
    """Collect the exceptions that aiokafka logs in this task, and in tasks started from it, inside the block."""
    limit_library_logs()
    captured: list[BaseException] = []
    token = _capture.set(captured)
    try:
        yield captured
    finally:
        _capture.reset(token)

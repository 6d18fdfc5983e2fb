"""How many rows and bytes the relay holds in memory, and what wakes its reader."""

from __future__ import annotations

import asyncio

__all__ = ["Window"]


class Window:
    """The bound on rows in memory: those on their way to the log, to their actions, or to their mark."""

    def __init__(self, *, max_rows: int, max_bytes: int) -> None:
        self.rows = 0
        self.bytes = 0
        self.wake = asyncio.Event()
        """Set when there may be more to read than a moment ago."""
        self._max_rows = max_rows
        self._max_bytes = max_bytes

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be read now."""
        return self.rows >= self._max_rows or self.bytes >= self._max_bytes

    @property
    def room(self) -> tuple[int, int]:
        """Rows and bytes that may still be read."""
        return max(1, self._max_rows - self.rows), max(1, self._max_bytes - self.bytes)

    def add(self, rows: int, size: int) -> None:
        """Rows were taken in."""
        self.rows += rows
        self.bytes += size

    def release(self, rows: int, size: int) -> None:
        """Rows are done, or were dropped to be read again."""
        was_full = self.is_full
        self.rows -= rows
        self.bytes -= size
        if was_full:
            self.wake.set()

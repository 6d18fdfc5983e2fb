"""What happened in a run, in words for people and as a digest that two runs of one seed must share."""

from __future__ import annotations

import asyncio
import zlib

__all__ = ["Journal"]


class Journal:
    """The schedule of one run. ``digest`` covers every call, ``lines`` only what was not usual."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.digest = 0

    def note(self, words: str) -> None:
        """Something that a reader of the schedule wants to know."""
        self.lines.append(f"{self._time():9.3f}  {words}")
        self.trace(words)

    def trace(self, words: str) -> None:
        """Something that happens all the time."""
        self.digest = zlib.crc32(f"{self._time():.9f} {words}".encode(), self.digest)

    @staticmethod
    def _time() -> float:
        return asyncio.get_running_loop().time()

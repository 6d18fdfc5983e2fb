"""Time, chance, threads and files: what pipeline code needs of its own process and computer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID

__all__ = ["Clock", "Executor", "Files", "Random"]

_T = TypeVar("_T")


class Clock(Protocol):
    """Time. Deadlines use the event loop's own clock, which a simulation replaces together with this one."""

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    def now(self) -> datetime:
        """Wall time, aware, UTC."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class Random(Protocol):
    """Chance, seeded in a simulation."""

    def uniform(self, low: float, high: float) -> float:
        """A float in [low, high]."""
        ...

    def token(self) -> str:
        """Eight hex digits."""
        ...

    def uuid(self) -> UUID:
        """A random uuid (version 4)."""
        ...


class Executor(Protocol):
    """Where plain (blocking) functions run."""

    async def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call ``function(*arguments)`` off the event loop and give its result.

        A cancelled caller does not stop the function: its thread stays occupied until it returns.
        """
        ...


class Files(Protocol):
    """The local disk, as far as the spool needs it. Paths are absolute or relative to the working directory."""

    async def make_directory(self, path: str) -> None:
        """Create the directory and its parents; no error when it is there."""
        ...

    async def lock(self, path: str) -> bool:
        """Take the lock file for this process for as long as it lives; False when another process holds it."""
        ...

    async def unlock(self, path: str) -> None:
        """Give the lock back."""
        ...

    async def names(self, directory: str) -> Sequence[str]:
        """The sorted names of the files in a directory."""
        ...

    async def size(self, path: str) -> int:
        """Bytes; 0 when there is no such file."""
        ...

    async def append(self, path: str, data: bytes) -> int:
        """Append and fsync the file (and, when it was created, its directory); give the size before.

        Raises OSError; then the file may end in a torn piece of ``data``.
        """
        ...

    async def truncate(self, path: str, size: int) -> None:
        """Cut the file to ``size`` bytes and fsync it."""
        ...

    async def read(self, path: str, offset: int, limit: int) -> bytes:
        """Up to ``limit`` bytes from ``offset``; empty past the end."""
        ...

    async def replace(self, path: str, data: bytes) -> None:
        """Write the whole file anew, atomically and durably (temporary file, fsync, rename, fsync of the directory)."""
        ...

    async def remove(self, path: str) -> None:
        """Remove the file and fsync the directory; no error when it is not there."""
        ...

"""The local disk, behind the port `Files`: blocking calls in threads of their own, durable where the port says so."""

from __future__ import annotations

import asyncio
import fcntl
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from outboxd.runtime.executor import ThreadExecutor

__all__ = ["OsFiles", "replace_durably"]

_THREADS: Final = 4


class OsFiles:
    """Files of this computer. Locks are `flock` locks: the kernel lets go of them when the process dies."""

    def __init__(self) -> None:
        self._threads = ThreadExecutor(threads=_THREADS, name="files")
        self._locks: dict[str, int] = {}

    async def make_directory(self, path: str) -> None:
        """Create the directory and its parents."""
        await self._threads.run(_make_directory, path)

    async def lock(self, path: str) -> bool:
        """Take the lock file; False when another process, or another owner in this one, holds it."""
        key = _absolute(path)
        if key in self._locks:
            return False
        taking = asyncio.ensure_future(self._threads.run(_lock, path))
        try:
            descriptor = await asyncio.shield(taking)
        except asyncio.CancelledError:
            # The thread goes on and may take the lock yet: nobody would ever give it back.
            taking.add_done_callback(_let_go)
            raise
        if descriptor is None:
            return False
        self._locks[key] = descriptor
        return True

    async def unlock(self, path: str) -> None:
        """Give the lock back; no error when it is not held."""
        descriptor = self._locks.pop(_absolute(path), None)
        if descriptor is not None:
            os.close(descriptor)

    async def names(self, directory: str) -> Sequence[str]:
        """The sorted names of the files in a directory."""
        return await self._threads.run(_names, directory)

    async def size(self, path: str) -> int:
        """Bytes; 0 when there is no such file."""
        return await self._threads.run(_size, path)

    async def append(self, path: str, data: bytes) -> int:
        """Append and fsync; give the size before. Raises OSError."""
        return await self._threads.run(_append, path, data)

    async def truncate(self, path: str, size: int) -> None:
        """Cut the file to ``size`` bytes and fsync it."""
        await self._threads.run(_truncate, path, size)

    async def read(self, path: str, offset: int, limit: int) -> bytes:
        """Up to ``limit`` bytes from ``offset``; empty past the end."""
        return await self._threads.run(_read, path, offset, limit)

    async def replace(self, path: str, data: bytes) -> None:
        """Write the whole file anew, atomically and durably."""
        await self._threads.run(replace_durably, Path(path), data)

    async def remove(self, path: str) -> None:
        """Remove the file and fsync the directory; no error when it is not there."""
        await self._threads.run(_remove, path)

    def close(self) -> None:
        """Give every lock back and let the threads go."""
        while self._locks:
            os.close(self._locks.popitem()[1])
        self._threads.close()


def replace_durably(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path``, fsync it, rename it over ``path``, fsync the directory. Raises OSError.

    Whoever reads sees the old file or the new one, also after a power cut.
    """
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        try:
            _write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _absolute(path: str) -> str:
    return str(Path(path).absolute())


def _make_directory(path: str) -> None:
    directory = Path(path).absolute()
    missing = [level for level in (directory, *directory.parents) if not level.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for level in missing:
        _sync_directory(level.parent)


def _let_go(taking: asyncio.Future[int | None]) -> None:
    if not taking.cancelled() and taking.exception() is None and (descriptor := taking.result()) is not None:
        os.close(descriptor)


def _lock(path: str) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _names(directory: str) -> Sequence[str]:
    with os.scandir(directory) as entries:
        return sorted(entry.name for entry in entries if entry.is_file())


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except FileNotFoundError:
        return 0


def _append(path: str, data: bytes) -> int:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        before = os.fstat(descriptor).st_size
        _write_all(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if before == 0:  # new, or new to everybody but a write that failed: its name may not be durable yet
        _sync_directory(Path(path).parent)
    return before


def _truncate(path: str, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: str, offset: int, limit: int) -> bytes:
    with Path(path).open("rb") as file:
        file.seek(offset)
        return file.read(limit)


def _remove(path: str) -> None:
    try:
        Path(path).unlink()
    except FileNotFoundError:
        return
    _sync_directory(Path(path).parent)


def _write_all(descriptor: int, data: bytes) -> None:
    """`os.write` may write less than it was given (a full disk writes a piece first)."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_directory(path: Path) -> None:
    """A new name is durable only when its directory is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The local disk in memory, with what real ones do: torn writes, syncs that fail or lie, no space, power cuts."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import PurePosixPath

from outboxd.testing.fakes.faults import Faults

__all__ = ["FakeFiles"]


class FakeFiles:
    """The files port. ``capacity`` is the size of the disk in bytes; None means endless.

    `power_cut` gives the disk as the next process finds it. ``torn`` is how many bytes of the next append reach the disk
    before it fails; ``lies`` makes a sync say that it is done though a power cut still takes what it was to keep.
    """

    def __init__(self, faults: Faults | None = None, capacity: int | None = None) -> None:
        self.faults = Faults() if faults is None else faults
        self.capacity = capacity
        self.torn: int | None = None
        self.lies = False
        self.contents: dict[str, bytearray] = {}
        self.synced: dict[str, int] = {}
        self.locked: set[str] = set()
        self._directories: set[PurePosixPath] = {PurePosixPath("/"), PurePosixPath()}
        self._ours: set[str] = set()

    def power_cut(self, keep: int | None = None) -> FakeFiles:
        """The disk after a power cut: of what was not synced, ``keep`` bytes of each file (None: none) are there."""
        after = FakeFiles(capacity=self.capacity)
        after._directories = set(self._directories)
        for path, content in self.contents.items():
            if path in self.synced:
                end = min(len(content), self.synced[path] + (keep or 0))
                after.contents[path] = content[:end]
                after.synced[path] = end
        return after

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.contents.values()))

    async def make_directory(self, path: str) -> None:
        """Create it and its parents."""

        def effect() -> None:
            directory = PurePosixPath(path)
            self._directories.update((directory, *directory.parents))

        await self.faults.around("make_directory", effect)

    async def lock(self, path: str) -> bool:
        """Take the lock unless somebody has it; put its path into ``locked`` to play another process."""

        def effect() -> bool:
            if path in self.locked:
                return False
            self._written(path)
            self.locked.add(path)
            self._ours.add(path)
            return True

        return await self.faults.around("lock", effect)

    async def unlock(self, path: str) -> None:
        """Give it back, if it is ours."""

        def effect() -> None:
            if path in self._ours:
                self._ours.discard(path)
                self.locked.discard(path)

        await self.faults.around("unlock", effect)

    async def names(self, directory: str) -> Sequence[str]:
        """The sorted names in a directory."""

        def effect() -> Sequence[str]:
            self._check_directory(PurePosixPath(directory))
            paths = map(PurePosixPath, self.contents)
            return sorted(path.name for path in paths if path.parent == PurePosixPath(directory))

        return await self.faults.around("names", effect)

    async def size(self, path: str) -> int:
        """Bytes; 0 without a file."""
        return await self.faults.around("size", lambda: len(self.contents.get(path, b"")))

    async def append(self, path: str, data: bytes) -> int:
        """Append and sync. Raises OSError when the disk is full or the write is torn."""
        return await self.faults.around("append", lambda: self._append(path, data))

    async def truncate(self, path: str, size: int) -> None:
        """Cut the file; one that is shorter is filled with zeros."""

        def effect() -> None:
            content = self._file(path)
            del content[size:]
            content.extend(bytes(size - len(content)))
            self.synced[path] = size

        await self.faults.around("truncate", effect)

    async def read(self, path: str, offset: int, limit: int) -> bytes:
        """A piece of the file."""
        return await self.faults.around("read", lambda: bytes(self._file(path)[offset : offset + limit]))

    async def replace(self, path: str, data: bytes) -> None:
        """Write the whole file anew, or not at all; for a moment both have room."""

        def effect() -> None:
            self._check_directory(PurePosixPath(path).parent)
            self._check_space(len(data))
            self.contents[path] = bytearray(data)
            self.synced[path] = len(data)

        await self.faults.around("replace", effect)

    async def remove(self, path: str) -> None:
        """Remove the file, if it is there."""

        def effect() -> None:
            self.contents.pop(path, None)
            self.synced.pop(path, None)

        await self.faults.around("remove", effect)

    def _append(self, path: str, data: bytes) -> int:
        content = self._written(path)
        before = len(content)
        if self.torn is not None:
            content += data[: self.torn]
            self.torn = None
            raise OSError(errno.EIO, "Input/output error")
        try:
            self._check_space(len(data))
        except OSError:
            content += data[: max(0, (self.capacity or 0) - self.used)]
            raise
        content += data
        if not self.lies:
            self.synced[path] = len(content)
        return before

    def _check_space(self, more: int) -> None:
        if self.capacity is not None and self.used + more > self.capacity:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _check_directory(self, directory: PurePosixPath) -> None:
        if directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(directory))

    def _written(self, path: str) -> bytearray:
        """The file, created if need be."""
        self._check_directory(PurePosixPath(path).parent)
        return self.contents.setdefault(path, bytearray())

    def _file(self, path: str) -> bytearray:
        if path not in self.contents:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return self.contents[path]

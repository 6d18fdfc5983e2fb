"""The port `Files`: what the spool may expect of a disk."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Protocol
from unittest.mock import patch

import pytest

from outboxd.ports import Files
from outboxd.runtime.files import OsFiles
from outboxd.testing.fakes.files import FakeFiles
from tests.conformance.telling import Stage, conforms, in_real_time, in_virtual_time

_HOLD: Final = """
import fcntl, sys
lock = open(sys.argv[1], "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("taken", flush=True)
else:
    print("held", flush=True)
    sys.stdin.read()
"""


class Disk(Protocol):
    """A disk with an empty directory ``root``, and the other processes of its computer."""

    files: Files
    root: str

    def tearing(self, size: int) -> AbstractContextManager[None]:
        """The next write reaches the disk with so many bytes, and fails."""
        ...

    def elsewhere(self, path: str) -> AbstractAsyncContextManager[bool]:
        """Another process takes this lock and dies in the end; whether it got it."""
        ...


class _Double:
    root = "/disk"

    def __init__(self) -> None:
        self._fake = FakeFiles()
        self.files: Files = self._fake

    @contextmanager
    def tearing(self, size: int) -> Iterator[None]:
        self._fake.torn = size
        yield

    @asynccontextmanager
    async def elsewhere(self, path: str) -> AsyncIterator[bool]:
        is_held = path not in self._fake.locked
        self._fake.locked.add(path)
        yield is_held
        if is_held:
            self._fake.locked.discard(path)


class _Real:
    def __init__(self, root: Path, files: OsFiles) -> None:
        self.files: Files = files
        self.root = str(root)

    @contextmanager
    def tearing(self, size: int) -> Iterator[None]:
        write, is_torn = os.write, False

        def torn(descriptor: int, data: bytes) -> int:
            nonlocal is_torn
            if not is_torn:
                is_torn = True
                return write(descriptor, data[:size])
            raise OSError(errno.EIO, "Input/output error")

        with patch.object(os, "write", torn):
            yield
        assert is_torn

    @asynccontextmanager
    async def elsewhere(self, path: str) -> AsyncIterator[bool]:
        other = subprocess.Popen(
            [sys.executable, "-c", _HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        with other:
            assert other.stdout is not None
            is_held = other.stdout.readline() == "held\n"
            yield is_held
            other.kill()


@asynccontextmanager
async def double_disk() -> AsyncIterator[Disk]:
    disk = _Double()
    await disk.files.make_directory(disk.root)
    yield disk


@asynccontextmanager
async def real_disk(root: Path) -> AsyncIterator[Disk]:
    files = OsFiles()
    yield _Real(root, files)
    files.close()


@pytest.fixture(params=["double", "disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    return in_virtual_time(double_disk) if request.param == "double" else in_real_time(lambda: real_disk(tmp_path))


@conforms
async def test_what_was_appended_is_read_back_from_any_place(disk: Disk) -> None:
    files, path = disk.files, f"{disk.root}/1.segment"
    assert await files.size(path) == 0
    assert await files.append(path, b"one") == 0
    assert await files.append(path, b"") == 3
    assert await files.append(path, b"three\x00\xff") == 3
    assert await files.size(path) == 10
    assert await files.read(path, 0, 100) == b"onethree\x00\xff"
    assert await files.read(path, 3, 2) == b"th"
    assert await files.read(path, 10, 10) == await files.read(path, 99, 10) == await files.read(path, 0, 0) == b""


@conforms
async def test_directories_are_made_with_their_parents_and_made_twice(disk: Disk) -> None:
    deep = f"{disk.root}/a/b/c"
    for _ in range(2):
        await disk.files.make_directory(deep)
    await disk.files.append(f"{deep}/file", b"1")
    await disk.files.append(f"{disk.root}/a/file", b"2")
    assert await disk.files.names(deep) == ["file"]
    assert await disk.files.names(f"{disk.root}/a") == ["file"], "files only, and only its own"
    assert await disk.files.names(disk.root) == []


@conforms
async def test_without_its_directory_nothing_is_written_listed_or_locked(disk: Disk) -> None:
    files, path = disk.files, f"{disk.root}/missing/file"
    for call in (
        files.append(path, b"1"),
        files.replace(path, b"1"),
        files.names(f"{disk.root}/missing"),
        files.lock(path),
    ):
        with pytest.raises(FileNotFoundError):
            await call
    assert await files.size(path) == 0
    await files.remove(path)
    await files.make_directory(f"{disk.root}/missing")
    assert await files.names(f"{disk.root}/missing") == []


@conforms
async def test_a_file_that_is_not_there_is_not_read_or_cut(disk: Disk) -> None:
    path = f"{disk.root}/file"
    for call in (disk.files.read(path, 0, 1), disk.files.truncate(path, 0)):
        with pytest.raises(FileNotFoundError):
            await call
    assert await disk.files.names(disk.root) == []


@conforms
async def test_a_file_is_cut_and_goes_on_there(disk: Disk) -> None:
    files, path = disk.files, f"{disk.root}/file"
    await files.append(path, b"0123456789")
    await files.truncate(path, 4)
    assert await files.append(path, b"x") == 4
    assert await files.read(path, 0, 100) == b"0123x"
    await files.truncate(path, 7)
    assert await files.read(path, 0, 100) == b"0123x\x00\x00"
    await files.truncate(path, 0)
    assert (await files.size(path), await files.names(disk.root)) == (0, ["file"])


@conforms
async def test_an_append_that_fails_may_leave_a_torn_piece_and_no_more(disk: Disk) -> None:
    files, path = disk.files, f"{disk.root}/file"
    await files.append(path, b"whole ")
    with disk.tearing(3), pytest.raises(OSError, match="Input/output"):
        await files.append(path, b"torn")
    assert await files.read(path, 0, 100) == b"whole tor"
    await files.truncate(path, 6)
    assert await files.append(path, b"again") == 6
    assert await files.read(path, 0, 100) == b"whole again"


@conforms
async def test_a_file_is_replaced_whole_and_leaves_nothing_beside_it(disk: Disk) -> None:
    files, path = disk.files, f"{disk.root}/position"
    await files.replace(path, b"first, and long")
    await files.replace(path, b"second")
    assert await files.read(path, 0, 100) == b"second"
    await files.append(path, b"!")
    assert await files.read(path, 0, 100) == b"second!"
    assert await files.names(disk.root) == ["position"]


@conforms
async def test_names_are_sorted_and_removing_twice_is_no_error(disk: Disk) -> None:
    for name in ("b", "a", "B", "10", "9"):
        await disk.files.append(f"{disk.root}/{name}", b"")
    assert await disk.files.names(disk.root) == ["10", "9", "B", "a", "b"]
    for _ in range(2):
        await disk.files.remove(f"{disk.root}/a")
    assert await disk.files.names(disk.root) == ["10", "9", "B", "b"]
    assert await disk.files.append(f"{disk.root}/a", b"1") == 0


@conforms
async def test_a_lock_is_ours_alone_until_it_is_given_back(disk: Disk) -> None:
    path = f"{disk.root}/lock"
    assert await disk.files.lock(path)
    assert not await disk.files.lock(path)
    async with disk.elsewhere(path) as is_held:
        assert not is_held
    await disk.files.unlock(path)
    await disk.files.unlock(path)
    async with disk.elsewhere(path) as is_held:
        assert is_held


@conforms
async def test_a_lock_of_another_process_is_not_taken_or_given_back_and_ends_with_it(disk: Disk) -> None:
    path = f"{disk.root}/lock"
    async with disk.elsewhere(path) as is_held:
        assert is_held
        assert not await disk.files.lock(path)
        await disk.files.unlock(path)
        assert not await disk.files.lock(path)
    assert await disk.files.lock(path)


@conforms
async def test_a_lock_is_a_file_of_its_directory_and_locks_nothing_else(disk: Disk) -> None:
    assert await disk.files.lock(f"{disk.root}/lock")
    assert await disk.files.names(disk.root) == ["lock"]
    assert await disk.files.size(f"{disk.root}/lock") == 0
    assert await disk.files.lock(f"{disk.root}/other")
    await disk.files.append(f"{disk.root}/file", b"1")


@conforms
async def test_of_many_that_lock_at_once_one_gets_it(disk: Disk) -> None:
    for _ in range(3):
        taken = await asyncio.gather(*(disk.files.lock(f"{disk.root}/lock") for _ in range(6)))
        assert taken.count(True) == 1
        await disk.files.unlock(f"{disk.root}/lock")


@conforms
async def test_files_that_are_written_at_once_know_nothing_of_each_other(disk: Disk) -> None:
    async def story(number: int) -> None:
        path = f"{disk.root}/{number}"
        for step in range(5):
            assert await disk.files.append(path, b"%d" % number) == step
        await disk.files.replace(f"{path}.position", b"%d" % number)
        assert await disk.files.read(path, 0, 9) == b"%d" % number * 5
        await disk.files.remove(path)

    await asyncio.gather(*(story(number) for number in range(8)))
    assert await disk.files.names(disk.root) == [f"{number}.position" for number in range(8)]

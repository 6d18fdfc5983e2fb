"""The port `Files` on a real disk, and the threads behind it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from outboxd.runtime import files as module
from outboxd.runtime.executor import ThreadExecutor
from outboxd.runtime.files import OsFiles


@pytest.fixture
async def files() -> AsyncIterator[OsFiles]:
    made = OsFiles()
    yield made
    made.close()


async def test_append_gives_the_size_before_and_read_finds_it_there(files: OsFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "spool" / "1.segment")
    await files.make_directory(str(tmp_path / "spool"))
    await files.make_directory(str(tmp_path / "spool"))
    assert await files.size(path) == 0
    assert await files.append(path, b"one") == 0
    assert await files.append(path, b"three") == 3
    assert await files.size(path) == 8
    assert await files.read(path, 3, 100) == b"three"
    assert await files.read(path, 3, 2) == b"th"
    assert await files.read(path, 8, 10) == b""
    await files.truncate(path, 3)
    assert await files.append(path, b"!") == 3


async def test_append_syncs_the_file_and_a_new_name_its_folder(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    if not Path("/proc/self/fd").exists():
        pytest.skip("names of open files are looked up in /proc")
    monkeypatch.setattr(os, "fsync", sync)
    await files.append(str(tmp_path / "a"), b"1")
    assert synced == ["a", tmp_path.name]
    await files.append(str(tmp_path / "a"), b"2")
    assert synced[2:] == ["a"]
    synced.clear()
    await files.replace(str(tmp_path / "a"), b"3")
    assert synced[-1] == tmp_path.name
    assert len(synced) == 2
    synced.clear()
    await files.remove(str(tmp_path / "a"))
    assert synced == [tmp_path.name]


async def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "position"
    await files.replace(str(path), b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        await files.replace(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


async def test_names_are_sorted_and_removing_twice_is_no_error(files: OsFiles, tmp_path: Path) -> None:
    for name in ("b", "a"):
        await files.append(str(tmp_path / name), b"")
    (tmp_path / "folder").mkdir()
    assert await files.names(str(tmp_path)) == ["a", "b"]
    await files.remove(str(tmp_path / "a"))
    await files.remove(str(tmp_path / "a"))
    assert await files.names(str(tmp_path)) == ["b"]


async def test_a_lock_is_ours_alone_until_it_is_given_back(files: OsFiles, tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    assert await files.lock(path)
    assert not await files.lock(path)
    other = OsFiles()
    assert not await other.lock(path)
    script = "import fcntl,sys; f=open(sys.argv[1],'a'); fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    held = subprocess.run([sys.executable, "-c", script, path], capture_output=True, check=False)
    assert held.returncode == 1
    await files.unlock(path)
    await files.unlock(path)
    assert await other.lock(path)
    other.close()


async def test_a_function_that_raises_stop_iteration_does_not_hang_its_caller() -> None:
    executor = ThreadExecutor(threads=1, name="test")
    with pytest.raises(RuntimeError, match="StopIteration"):
        await executor.run(next, iter(()))
    executor.close()


async def test_a_lock_that_is_taken_after_the_caller_gave_up_is_given_back(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, disk = threading.Event(), threading.Event()
    take = module._lock

    def slow(path: str) -> int | None:
        entered.set()
        disk.wait(10)
        return take(path)

    monkeypatch.setattr(module, "_lock", slow)
    taking = asyncio.create_task(files.lock(str(tmp_path / "lock")))
    await asyncio.to_thread(entered.wait, 10)
    taking.cancel()
    await asyncio.wait({taking})
    monkeypatch.setattr(module, "_lock", take)
    disk.set()
    async with asyncio.timeout(10):
        while not await files.lock(str(tmp_path / "lock")):
            await asyncio.sleep(0.01)


async def test_a_first_append_after_one_that_failed_makes_the_name_durable(
    files: OsFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(module, "_sync_directory", synced.append)
    (tmp_path / "a").touch()  # what a write that failed has left
    await files.append(str(tmp_path / "a"), b"1")
    assert synced == [tmp_path]
    synced.clear()
    await files.make_directory(str(tmp_path / "x" / "y"))
    assert set(synced) == {tmp_path, tmp_path / "x"}

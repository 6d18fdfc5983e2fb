"""One server process under a guard: start, orderly stop, kill, freeze and wake, and the clean-up after a broken run."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import psutil

from outboxd.dev import guard
from outboxd.dev.guard import GuardSpec
from outboxd.dev.logs import log_tail
from outboxd.errors import DevServerFailed

__all__ = ["ServerProcess", "end_leftovers"]

_POLL = 0.02  # seconds between two looks at a process or a socket; servers take hundreds of milliseconds


class ServerProcess:
    """A running server and its guard.

    The guard is our child and the server the guard's, in a session of their own: an interrupt typed at the terminal
    reaches us and not them, so that we decide the order in which things stop.
    """

    def __init__(self, *, spec: GuardSpec, child: subprocess.Popen[bytes]) -> None:
        self._spec = spec
        self._guard = child
        self._server: psutil.Process | None = None

    @classmethod
    async def start(
        cls,
        spec: GuardSpec,
        *,
        environment: Mapping[str, str] | None = None,
        deadline: timedelta = timedelta(seconds=10),
    ) -> ServerProcess:
        """Start guard and server; returns when the server's process exists, not when it answers.

        ``environment`` is the guard's (None: ours), and the server's too where the spec names none.
        """
        process = cls(spec=spec, child=_spawn(spec, environment))
        try:
            await process._find_server(deadline)
        except BaseException:
            process._close_order_pipe()
            raise
        return process

    async def _find_server(self, deadline: timedelta) -> None:
        until = time.monotonic() + deadline.total_seconds()
        while self._server is None:
            pids = read_pid_file(Path(self._spec.pid_file))
            # A pid file of an earlier guard was removed before we started; still, only our own guard's counts.
            if pids.get("guard") == self._guard.pid:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self._server = psutil.Process(pids["server"])
                    return
            self.raise_if_ended()
            if time.monotonic() > until:
                raise DevServerFailed(
                    f"{self._name} did not start within {deadline.total_seconds():g} s: {self._tail()}"
                )
            await asyncio.sleep(_POLL)

    @property
    def pid(self) -> int:
        """The server's own process id (not the guard's)."""
        assert self._server is not None
        return self._server.pid

    @property
    def is_running(self) -> bool:
        """True while the server's process exists, frozen or not."""
        return self._guard.poll() is None

    @property
    def exit_status(self) -> int | None:
        """What the server ended with (128 + signal when a signal ended it); None while it runs."""
        return self._guard.poll()

    @property
    def _name(self) -> str:
        return Path(self._spec.argv[0]).name

    def _tail(self) -> str:
        return log_tail(Path(self._spec.log))

    def raise_if_ended(self) -> None:
        """Raises DevServerFailed with the end of the log when the server has ended by itself."""
        status = self._guard.poll()
        if status is not None:
            raise DevServerFailed(f"{self._name} ended with status {status}: {self._tail()}")

    async def stop(self) -> None:
        """Stop in order within the grace of the spec, then by force. Returns when nothing of it runs any more."""
        self._close_order_pipe()
        if await self._guard_ended(timedelta(seconds=self._spec.grace + 5)):
            return
        await self.kill()

    async def kill(self) -> None:
        """``kill -9`` of the server and its children at one moment, as when the machine loses power."""
        for process in self._freeze():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        if not await self._guard_ended(timedelta(seconds=10)):
            self._guard.kill()
            self._guard.wait()
        self._close_order_pipe()

    def pause(self) -> None:
        """Freeze the server and its children (SIGSTOP): connections stay open and nothing answers."""
        self._freeze()

    def resume(self) -> None:
        """Wake what `pause` froze."""
        assert self._server is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [self._server, *self._server.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def _freeze(self) -> list[psutil.Process]:
        # The parent first: once it stands still it makes no new children while we list them.
        assert self._server is not None
        family = [self._server]
        with contextlib.suppress(psutil.NoSuchProcess):
            self._server.suspend()
            for child in self._server.children(recursive=True):
                family.append(child)
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.suspend()
        return family

    def _close_order_pipe(self) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()

    async def _guard_ended(self, deadline: timedelta) -> bool:
        until = time.monotonic() + deadline.total_seconds()
        while self._guard.poll() is None:
            if time.monotonic() > until:
                return False
            await asyncio.sleep(_POLL)
        return True


def _spawn(spec: GuardSpec, environment: Mapping[str, str] | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", guard.__file__, spec.to_json()],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def read_pid_file(path: Path) -> dict[str, int]:
    """The guard's and the server's process ids, empty when there is no such file."""
    try:
        pids: dict[str, int] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return pids


async def end_leftovers(pid_file: Path, folder: Path, *, deadline: timedelta) -> None:
    """End what an interrupted run left in ``folder``; returns when it is gone.

    A process id may have been given to a stranger since: only a process whose command line names the folder is ours.
    """
    ours = [process for pid in read_pid_file(pid_file).values() if (process := _ours(pid, folder)) is not None]
    # Its guard is stopping the server right now, or is gone itself: give an orderly stop its time.
    await asyncio.to_thread(psutil.wait_procs, ours, timeout=deadline.total_seconds())
    for process in ours:
        with contextlib.suppress(psutil.NoSuchProcess):
            for member in [process, *process.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.send_signal(signal.SIGKILL)
    await asyncio.to_thread(psutil.wait_procs, ours, timeout=5)
    pid_file.unlink(missing_ok=True)


def _ours(pid: int, folder: Path) -> psutil.Process | None:
    try:
        process = psutil.Process(pid)
        command_line = " ".join(process.cmdline())
    except psutil.Error:
        return None
    return process if str(folder) in command_line else None

"""A process that owns one server process: when whoever started it dies, however suddenly, the server is stopped too.

Run as a script (``python -I guard.py SPEC``) that imports little, so that it costs some milliseconds and megabytes. Its standard input is a pipe whose other end only the starting process holds; the kernel closes that end even
after ``kill -9``, and the end of file is the order to stop. On Linux the server gets a death signal from the kernel as
well, for the case that the guard itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GuardSpec:
    """What the guard starts and how it stops it: paths absolute, ``grace`` in seconds.

    ``stop_signal`` is the server's signal for an orderly stop; after ``grace`` follows SIGKILL. ``user`` is the
    numeric user id (and group) to run as, None for our own. ``environment`` None: the guard's own, which no command
    line shows.
    """

    argv: list[str]
    environment: dict[str, str] | None
    folder: str
    log: str
    pid_file: str
    stop_signal: int
    grace: float
    user: int | None = None
    group: int | None = None

    def to_json(self) -> str:
        """One command-line argument."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> GuardSpec:
        """The inverse of `to_json`."""
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)


def _die_with(guard: int) -> None:
    """Between fork and exec of the server: ask the kernel to kill us when the guard dies (Linux)."""
    if not _LINUX:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The guard may have died between fork and prctl: then no signal will ever come.
    if os.getppid() != guard:
        os._exit(1)


def _start(spec: GuardSpec) -> subprocess.Popen[bytes]:
    guard = os.getpid()
    identity: dict[str, Any] = {}
    if spec.user is not None:
        identity = {"user": spec.user, "group": spec.group, "extra_groups": []}
    with Path(spec.log).open("ab") as log:
        return subprocess.Popen(
            spec.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=spec.folder,
            env=spec.environment,
            preexec_fn=lambda: _die_with(guard),  # noqa: PLW1509 -- this process has one thread
            **identity,
        )


def _write_pid_file(path: Path, server: int) -> None:
    # Whole or not at all: the next start reads it after any kind of crash.
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"guard": os.getpid(), "server": server}))
    new.replace(path)


def _stop(server: subprocess.Popen[bytes], stop_signal: int, grace: float) -> None:
    """Stop in order, and by force after ``grace``; whatever is frozen (SIGSTOP) is woken, else it would never see it."""
    import psutil

    family = [psutil.Process(server.pid)]
    with contextlib.suppress(psutil.NoSuchProcess):
        family += family[0].children(recursive=True)
    server.send_signal(stop_signal)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(grace)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()


def _wait_for_death_or_order(server: subprocess.Popen[bytes], signals: int) -> bool:
    """True when the order to stop has come, False when the server ended by itself."""
    order = sys.stdin.fileno()
    while server.poll() is None:
        readable, _, _ = select.select([order, signals], [], [])
        if signals in readable and signal.SIGTERM in os.read(signals, 64):
            return True
        if order in readable and not os.read(order, 64):
            return True
    return False


def _adopt_orphans() -> None:
    """Ask the kernel to make us the parent of whatever the server leaves behind (Linux)."""
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _wait_for_orphans(patience: float) -> None:
    """When the server died before its children: wait until the last of them is gone, by force after ``patience``.

    Postgres's children hold its shared memory; a new server cannot start before they let go.
    """
    import psutil

    orphans = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(orphans, timeout=patience)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(alive, timeout=patience)


def main(argument: str) -> int:
    """Start the server, wait, and return its exit status (128 + signal when a signal ended it)."""
    spec = GuardSpec.from_json(argument)
    signals, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    # The handlers do nothing: the wakeup pipe carries the signals' numbers into select().
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: None)
    _adopt_orphans()
    server = _start(spec)
    _write_pid_file(Path(spec.pid_file), server.pid)
    if _wait_for_death_or_order(server, signals):
        _stop(server, spec.stop_signal, spec.grace)
    _wait_for_orphans(patience=2)
    Path(spec.pid_file).unlink(missing_ok=True)
    status = server.returncode
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

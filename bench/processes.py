"""CPU and memory of processes, from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["CpuMeter", "cpu_seconds", "peak_mib", "reset_peak"]

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process, of its living descendants, and of its children that have ended."""
    ticks = _ticks(pid, with_ended=True)
    for child in psutil.Process(pid).children(recursive=True):
        # One that ends while we look is in its parent's account the next time.
        with suppress(FileNotFoundError, ProcessLookupError):
            ticks += _ticks(child.pid, with_ended=False)
    return ticks / _TICKS


def _ticks(pid: int, *, with_ended: bool) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    user, system, ended_user, ended_system = map(int, fields[11:15])
    return user + system + (ended_user + ended_system if with_ended else 0)


def peak_mib(pid: int) -> float:
    """The most memory that the process itself had resident since it began, or since `reset_peak`, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)


def reset_peak(pid: int) -> None:
    """Let `peak_mib` count from now on."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", "ascii")


class CpuMeter:
    """CPU of several processes between two moments. ``pids`` by the names that the results give them."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._began = self._now()

    def per_row(self, rows: int) -> dict[str, float]:
        """Microseconds for each of ``rows`` rows since the meter began."""
        return {name: round(1e6 * (now - self._began[name]) / max(1, rows), 2) for name, now in self._now().items()}

    def _now(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}

"""Processes that are measured: each under a guard that ends it with us, however we end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from outboxd.dev.guard import GuardSpec
from outboxd.dev.logs import log_tail
from outboxd.dev.process import ServerProcess
from outboxd.dev.tool import BARE_ENVIRONMENT

__all__ = ["OUTBOXD", "ROOT", "Child", "python_module", "run_outboxd", "start_child"]

ROOT = Path(__file__).resolve().parents[1]
OUTBOXD = Path(sys.executable).with_name("outboxd")
_GRACE = 40.0  # seconds; a daemon drains for 25
_POLL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running process with its log. Its working directory is the checkout, so that it finds `bench`."""

    name: str
    log: Path
    process: ServerProcess

    @property
    def pid(self) -> int:
        """The process itself, not its guard."""
        return self.process.pid

    def raise_if_ended(self) -> None:
        """Raises RuntimeError with the end of its log when it is not running any more."""
        if not self.process.is_running:
            raise RuntimeError(f"{self.name} ended with status {self.process.exit_status}: {log_tail(self.log)}")

    async def file(self, path: Path, seconds: float) -> str:
        """What it writes to ``path``, once it is there. Raises TimeoutError, and RuntimeError when it ends before."""
        async with asyncio.timeout(seconds):
            while not path.exists():
                self.raise_if_ended()
                await asyncio.sleep(_POLL)
        return path.read_text("utf-8")

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after a while; returns when it is gone."""
        await self.process.stop()


async def start_child(
    folder: Path, name: str, argv: Sequence[str | Path], environment: Mapping[str, str] | None = None
) -> Child:
    """Start a process that leaves its files in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    log, pid_file = folder / f"{name}.log", folder / f"{name}.pid"
    spec = GuardSpec(
        argv=[str(argument) for argument in argv],
        environment=_environment(folder) | dict(environment or {}),
        folder=str(ROOT),
        log=str(log),
        pid_file=str(pid_file),
        stop_signal=15,
        grace=_GRACE,
    )
    return Child(name=name, log=log, process=await ServerProcess.start(spec))


def python_module(module: str, *arguments: str | int | Path) -> list[str]:
    """The command line of one of our own modules."""
    return [sys.executable, "-m", module, *map(str, arguments)]


async def run_outboxd(folder: Path, *arguments: str | Path) -> None:
    """Run an `outboxd` command to its end. Raises RuntimeError with what it said when it fails."""
    process = await asyncio.create_subprocess_exec(
        OUTBOXD,
        *arguments,
        cwd=ROOT,
        env=_environment(folder),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"outboxd {arguments[0]} ended with status {process.returncode}: {output.decode()}")


def _environment(folder: Path) -> dict[str, str]:
    return BARE_ENVIRONMENT | {"PYTHONPATH": str(ROOT), "OUTBOXD_STATE_DIR": str(folder / "state")}

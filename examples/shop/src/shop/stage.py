"""What the demo plays on: servers, databases, topics, the daemon as a process, and the `outboxd` command."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from outboxd.dev import DevStack
from outboxd.dev.guard import GuardSpec
from outboxd.dev.process import ServerProcess
from outboxd.errors import OutboxdError
from shop.database import ESTABLISHMENT, ORDERS

__all__ = ["Stage", "StoryBroken"]

_T = TypeVar("_T")
_TOPICS: Final = ("orders.new", "orders.status_updated", "orders.new.dlq", "orders.status_updated.dlq")
_COMMAND_SECONDS: Final = 30
_DRAIN_SECONDS: Final = 40
_LOG_LINES: Final = 15


class StoryBroken(OutboxdError):
    """The story did not come out as it should; the message has the end of the daemon's log."""

    code = "demo_failed"


class Stage:
    """Everything that the story needs, in one folder. Open with ``async with``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = DevStack(folder / "servers")
        self._daemon: ServerProcess | None = None
        self._url = ""
        self._environment: dict[str, str] = {}

    @property
    def stack(self) -> DevStack:
        """The servers."""
        return self._stack

    @property
    def config(self) -> Path:
        """The folder with the pipelines."""
        return self._folder / "pipelines"

    async def __aenter__(self) -> Self:
        # What an earlier story left in the folder, also one that was killed, is no part of this one.
        await self._stack.remove()
        for name in ("state", "spool", "daemon.log"):
            left = self._folder / name
            if left.is_dir():
                shutil.rmtree(left)
            left.unlink(missing_ok=True)
        await self._stack.start()
        try:
            await self._prepare()
        except BaseException:
            await self._stack.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await ORDERS.close()
            await ESTABLISHMENT.close()
            if self._daemon is not None and self._daemon.is_running:
                await self._daemon.kill()
        finally:
            await self._stack.stop()

    async def _prepare(self) -> None:
        """Databases, tables and topics; the pipelines with a port of their own."""
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}"
        self._environment = {
            "KAFKA": self._stack.bootstrap_servers,
            "SHOP_ORDERS_DSN": await self._stack.create_database("orders"),
            "SHOP_ESTABLISHMENT_DSN": await self._stack.create_database("establishment"),
            "SHOP_SPOOL": str(self._folder / "spool"),
            "OUTBOXD_HTTP__PORT": str(port),
            "OUTBOXD_STATE_DIR": str(self._folder / "state"),
        }
        os.environ.update(self._environment)
        for topic in _TOPICS:
            await self._stack.create_topic(topic, partitions=1)
        await ORDERS.create_tables()
        await ESTABLISHMENT.create_tables()
        self.config.mkdir(parents=True, exist_ok=True)
        pipelines = resources.files("shop").joinpath("pipelines.yaml").read_text("utf-8")
        (self.config / "pipelines.yaml").write_text(pipelines, "utf-8")

    # -- the daemon --------------------------------------------------------------------------------------------------

    async def start_daemon(self) -> None:
        """`outboxd run`, until every pipeline runs. Ends with this process, however that ends."""
        self._daemon = await ServerProcess.start(
            GuardSpec(
                argv=[*_outboxd(), "run", "-c", str(self.config)],
                environment=dict(os.environ),
                folder=str(self._folder),
                log=str(self._folder / "daemon.log"),
                pid_file=str(self._folder / "daemon.pid"),
                stop_signal=signal.SIGTERM,
                grace=_DRAIN_SECONDS,
            )
        )
        await self.until("every pipeline runs", self._all_run)

    async def _all_run(self) -> bool:
        try:
            pipelines = await self.outboxd("status")
        except StoryBroken:
            return False
        return bool(pipelines) and all(pipeline["state"] == "RUNNING" for pipeline in pipelines)

    async def stop_daemon(self) -> int | None:
        """SIGTERM: the daemon finishes what it has in hand; its exit code."""
        assert self._daemon is not None
        await self._daemon.stop()
        return self._daemon.exit_status

    async def outboxd(self, *arguments: str) -> Any:
        """The result of a command of `outboxd`, from its `--json`. Raises StoryBroken with its error."""
        finished = await self._command(*arguments, "--json")
        try:
            envelope: Mapping[str, Any] = json.loads(finished.stdout)
        except ValueError:
            raise StoryBroken(f"outboxd {' '.join(arguments)} printed no JSON: {finished.stderr.decode()}") from None
        if not envelope["ok"]:
            raise StoryBroken(f"outboxd {' '.join(arguments)}: {envelope['error']['message']}")
        result = envelope["result"]
        return result.get("items", result) if isinstance(result, dict) else result

    async def printed(self, *arguments: str) -> list[str]:
        """The lines that a command of `outboxd` prints for people. Raises StoryBroken when it fails."""
        finished = await self._command(*arguments)
        if finished.returncode != 0:
            raise StoryBroken(f"outboxd {' '.join(arguments)}: {finished.stderr.decode()}")
        return [line.rstrip() for line in finished.stdout.decode().splitlines()]

    async def _command(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        with_url = ["--url", self._url] if arguments[0] in {"status", "letters", "replays"} else []
        return await asyncio.to_thread(
            subprocess.run,
            [*_outboxd(), *arguments, *with_url],
            capture_output=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )

    # -- waiting -----------------------------------------------------------------------------------------------------

    async def until(self, what: str, look: Callable[[], Awaitable[_T | None]], seconds: float = 40) -> _T:
        """Look again and again until there is something to see. Raises StoryBroken when there is not in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while True:
            seen = await look()
            if seen:
                return seen
            if self._daemon is not None and not self._daemon.is_running:
                raise StoryBroken(f"the daemon ended while the story waited: {what}\n{self._log_tail()}")
            if loop.time() > deadline:
                raise StoryBroken(f"waited {seconds:g} s in vain: {what}\n{self._log_tail()}")
            await asyncio.sleep(0.1)

    def _log_tail(self) -> str:
        log = self._folder / "daemon.log"
        if not log.exists():
            return "the daemon has not been started"
        lines = log.read_text("utf-8", "replace").splitlines()[-_LOG_LINES:]
        return "the end of the daemon's log:\n" + "\n".join(f"    {line}" for line in lines)


def _outboxd() -> list[str]:
    return [sys.executable, "-m", "outboxd"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

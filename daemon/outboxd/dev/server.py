"""What a local Kafka and a local Postgres have in common: a folder, a port, a process, and the verbs on it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from outboxd.dev.guard import GuardSpec
from outboxd.dev.logs import log_tail
from outboxd.dev.port_lease import PortLease
from outboxd.dev.process import ServerProcess, end_leftovers
from outboxd.dev.tool import BARE_ENVIRONMENT
from outboxd.dev.whole_file import write_whole
from outboxd.errors import DevServerFailed

__all__ = ["Command", "Server"]

_START_DEADLINE = timedelta(seconds=60)
_POLL = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How a server is run: its command line, and the numeric user and group to run as (None: ours).

    ``environment`` is added to a bare one, or with ``inherits`` to ours.
    """

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    inherits: bool = False
    user: int | None = None
    group: int | None = None


class Server(ABC):
    """A server on 127.0.0.1 with its data in a folder of its own.

    Data and port outlive `stop` and `kill`; `start` after either finds both again. One instance at a time may use a
    folder; `DevStack` sees to that.
    """

    name: str
    stop_signal = signal.SIGTERM
    grace = timedelta(seconds=10)

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._process: ServerProcess | None = None
        self._ports: dict[str, PortLease] = {}

    # -- what differs ------------------------------------------------------------------------------------------------

    @abstractmethod
    async def _prepare(self) -> Command:
        """Write configuration and make the data folder when there is none; blocking work goes to a thread."""

    @abstractmethod
    async def _answers(self) -> bool:
        """True when the server does its work now, not only listens."""

    # -- verbs -------------------------------------------------------------------------------------------------------

    async def start(self, *, deadline: timedelta = _START_DEADLINE) -> None:
        """Start and wait until the server answers.

        Harmless when it runs already. What an interrupted run left in the folder is ended first. Raises
        DevServerFailed with the end of the log when the server ends or stays silent past ``deadline``.
        """
        if self.is_running:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        await end_leftovers(self._pid_file, self.folder, deadline=self.grace)
        self._lease_port("port")
        try:
            command = await self._prepare()
            environment = {**os.environ, **command.environment} if command.inherits else None
            self._process = await ServerProcess.start(self._spec(command), environment=environment)
            await self._wait_until_it_answers(deadline)
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        """Stop in order, by force after a grace of seconds; returns when no process is left. Harmless when stopped."""
        if self._process is not None:
            await self._process.stop()
            self._process = None

    async def kill(self) -> None:
        """``kill -9``, children included. Harmless when stopped."""
        if self._process is not None:
            await self._process.kill()
            self._process = None

    async def restart(self) -> None:
        """Stop and start with the same data on the same port."""
        await self.stop()
        await self.start()

    def pause(self) -> None:
        """Freeze the server: its connections stay open and nothing answers, until `resume`."""
        self._running().pause()

    def resume(self) -> None:
        """Wake what `pause` froze."""
        self._running().resume()

    async def remove(self) -> None:
        """Close and delete the folder with all data."""
        await self.close()
        await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    async def close(self) -> None:
        """Stop and give the ports back."""
        await self.stop()
        for lease in self._ports.values():
            lease.release()
        self._ports.clear()

    # -- what is -----------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True while the process exists, frozen or not."""
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._running().pid

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, the same for as long as this object lives; also known while the server is stopped."""
        return self._lease_port("port")

    @property
    def log(self) -> Path:
        """Everything the server prints, all starts one after the other."""
        return self.folder / f"{self.name}.log"

    @property
    def _pid_file(self) -> Path:
        return self.folder / f"{self.name}.pid"

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise DevServerFailed(f"{self.name} is not running", suggestion="Start it first.")
        return self._process

    def _lease_port(self, purpose: str) -> int:
        """The leased port for ``purpose``; the one that this folder had before when it is still free."""
        if purpose not in self._ports:
            memory = self.folder / "ports.json"
            known: dict[str, int] = json.loads(memory.read_text()) if memory.exists() else {}
            self._ports[purpose] = PortLease.acquire(known.get(purpose))
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(memory, json.dumps(known | {name: lease.port for name, lease in self._ports.items()}))
        return self._ports[purpose].port

    def _spec(self, command: Command) -> GuardSpec:
        return GuardSpec(
            argv=list(command.argv),
            environment=None if command.inherits else BARE_ENVIRONMENT | dict(command.environment),
            folder=str(self.folder),
            log=str(self.log),
            pid_file=str(self._pid_file),
            stop_signal=self.stop_signal,
            grace=self.grace.total_seconds(),
            user=command.user,
            group=command.group,
        )

    async def _wait_until_it_answers(self, deadline: timedelta) -> None:
        until = time.monotonic() + deadline.total_seconds()
        while True:
            self._running().raise_if_ended()
            if await self._answers():
                return
            if time.monotonic() > until:
                raise DevServerFailed(
                    f"{self.name} does not answer after {deadline.total_seconds():g} s: {log_tail(self.log)}",
                    suggestion="Is the computer overloaded? Delete the folder to start from nothing.",
                )
            await asyncio.sleep(_POLL)

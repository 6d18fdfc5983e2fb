"""Kafka and Postgres together in one folder: `DevStack`, for `outboxd dev`, the demo and tests."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from outboxd.dev.kafka import KafkaServer
from outboxd.dev.postgres import PostgresServer
from outboxd.dev.server import Server
from outboxd.errors import DevServerFailed

__all__ = ["DevStack"]


class DevStack:
    """A broker and a database server with their data in ``folder``, started together and stopped together.

    One process at a time may use the folder. Data and ports outlive the process: the next `DevStack` in the same
    folder finds both again, after it has ended whatever an interrupted run left there.

        async with DevStack(Path(".outboxd")) as stack:
            dsn = await stack.create_database("orders")
            stack.bootstrap_servers, stack.postgres_dsn("orders")

    Stacks in other folders do not meet: each leases ports of its own.
    """

    def __init__(self, folder: Path, *, kafka: bool = True, postgres: bool = True) -> None:
        self.folder = folder.resolve()
        self._kafka = KafkaServer(self.folder / "kafka") if kafka else None
        self._postgres = PostgresServer(self.folder / "postgres") if postgres else None
        self._lock: IO[str] | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Start both servers at once; both answer when this returns.

        Raises DevServerFailed (with the end of the server's log, or naming the process that uses the folder); then
        nothing is left running.
        """
        self._take_folder()
        try:
            async with asyncio.TaskGroup() as starting:
                for server in self._servers:
                    starting.create_task(server.start(), name=f"start {server.name}")
        except BaseExceptionGroup as failures:
            await self.stop()
            # One server's failure cancels the other's start: the first error is the cause, in its own words.
            raise failures.exceptions[0] from None
        except BaseException:
            await self.stop()
            raise
        return self

    async def stop(self) -> None:
        """Stop both servers, each by force after its grace; returns when no process is left. Harmless when repeated."""
        # Every server is told, also when another's stop raises.
        results = await asyncio.gather(*(server.close() for server in self._servers), return_exceptions=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def remove(self) -> None:
        """Stop, and delete all data."""
        await self.stop()
        for server in self._servers:
            await server.remove()
        with suppress(FileNotFoundError):
            (self.folder / "lock").unlink()
        with suppress(OSError):
            self.folder.rmdir()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    # -- servers -----------------------------------------------------------------------------------------------------

    @property
    def kafka(self) -> KafkaServer:
        """The broker, to be stopped, killed, frozen and started again. Raises DevServerFailed in a stack without."""
        if self._kafka is None:
            raise DevServerFailed("this stack was made without Kafka", suggestion="Make it with kafka=True.")
        return self._kafka

    @property
    def postgres(self) -> PostgresServer:
        """The database server, likewise."""
        if self._postgres is None:
            raise DevServerFailed("this stack was made without Postgres", suggestion="Make it with postgres=True.")
        return self._postgres

    @property
    def bootstrap_servers(self) -> str:
        """The broker's ``127.0.0.1:PORT``."""
        return self.kafka.bootstrap_servers

    def postgres_dsn(self, database: str = "postgres") -> str:
        """The superuser's DSN of a database, password included."""
        return self.postgres.dsn(database)

    async def create_database(self, name: str) -> str:
        """Create a database and return its DSN. Raises DevServerFailed when it exists."""
        return await self.postgres.create_database(name)

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Create a topic that every client can use at once. Raises DevServerFailed when it exists, unless ``exist_ok``."""
        await self.kafka.create_topic(name, partitions=partitions, settings=settings, exist_ok=exist_ok)

    @property
    def _servers(self) -> list[Server]:
        return [server for server in (self._kafka, self._postgres) if server is not None]

    def _take_folder(self) -> None:
        """Hold the folder for as long as we live; the kernel lets go of it when we die."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = (self.folder / "lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            lock.close()
            raise DevServerFailed(
                f"{self.folder} is in use by process {owner}",
                suggestion="Stop that process, or choose another folder.",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

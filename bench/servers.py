"""The broker and the database that everything is measured on, set up as a server is, not as a test's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from outboxd.dev import KafkaServer, PostgresServer

__all__ = ["BROKER_FLAGS", "POSTGRES_SETTINGS", "Servers", "running_servers"]

# The later flag wins: a server's collector and compiler in place of the ones that start fastest.
BROKER_FLAGS = ("-Xms1g", "-Xmx1g", "-XX:-UseSerialGC", "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4")

POSTGRES_SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "wal_level": "logical",  # Debezium reads the log; outboxd would do with less
    "shared_preload_libraries": "",
    "max_connections": "100",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """What contenders connect to. ``postgres`` is None where nothing needs it."""

    kafka: KafkaServer
    postgres: PostgresServer | None

    @property
    def database(self) -> PostgresServer:
        """The database server, in a measurement that has one."""
        assert self.postgres is not None
        return self.postgres

    @property
    def pids(self) -> dict[str, int]:
        """The process of each server by its name in the results."""
        pids = {"broker": self.kafka.pid}
        if self.postgres is not None:
            pids["postgres"] = self.postgres.pid
        return pids


@asynccontextmanager
async def running_servers(folder: Path, *, postgres: bool) -> AsyncIterator[Servers]:
    """Start the servers in ``folder``; both are gone, with their data, when the block ends."""
    servers = Servers(
        kafka=KafkaServer(folder / "kafka", flags=BROKER_FLAGS),
        postgres=PostgresServer(folder / "postgres", settings=POSTGRES_SETTINGS) if postgres else None,
    )
    started = [server for server in (servers.kafka, servers.postgres) if server is not None]
    try:
        async with asyncio.TaskGroup() as starting:
            for server in started:
                starting.create_task(server.start(), name=f"start {server.name}")
        yield servers
    finally:
        # Each is told, also when another's removal raises.
        await asyncio.gather(*(server.remove() for server in started), return_exceptions=True)

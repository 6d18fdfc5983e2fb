"""What relays are measured: outboxd, and the raw producer as the baseline. Debezium has a module of its own."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import asyncpg

from bench.children import OUTBOXD, Child, python_module, run_outboxd, start_child
from bench.inserting import Inserter, KafkaInserter, PostgresInserter
from bench.payload import KEYS, key, value, value_sql
from bench.servers import Servers

__all__ = ["Outboxd", "RawProducer", "Relay", "fill"]

_TRANSACTION = 100
_FILL_SECONDS = 300
_SETTLE_SECONDS = 60

CONFIG = """\
http: {{port: 0}}
connections:
  shop: {{type: postgres, dsn: "{dsn}"}}
  main: {{type: kafka, bootstrap_servers: ["{kafka}"]}}
pipelines:
  bench:
    outbox: {{connection: shop, done: delete}}
    publish: {{connection: main, compression: none}}
"""


class Relay(ABC):
    """One way from rows to a topic. Between `begin` and `end` it runs; rows are filled in while it does not."""

    name: ClassVar[str]
    carries_single_rows: ClassVar[bool] = True
    """Whether its process is what carries a row that `inserter` wrote, so that its CPU says something then."""

    def __init__(self, folder: Path, servers: Servers) -> None:
        self.folder = folder
        self._servers = servers

    async def set_up(self) -> None:  # noqa: B027 -- the baseline has nothing to make
        """Once, before the first measurement."""

    @abstractmethod
    async def fill(self, topic: str, rows: int) -> None:
        """Put the rows 0 to ``rows`` where `begin` will find them."""

    @abstractmethod
    async def begin(self) -> int:
        """Run, and say which process does the work."""

    async def settled(self) -> None:  # noqa: B027 -- most are done when their records are there
        """Return when nothing is left to do for rows that have all reached the topic."""

    @abstractmethod
    async def end(self) -> None:
        """Run no longer. Harmless when it does not run."""

    async def close(self) -> None:
        """Once, after the last measurement, also when one failed."""
        await self.end()

    @abstractmethod
    def inserter(self, topic: str) -> Inserter:
        """What writes single rows while the relay runs."""


async def fill(dsn: str, insert: Callable[[str], str], table: str, rows: int) -> None:
    """Run ``insert`` (a statement over rows that an SQL expression names) a hundred rows a transaction, then tidy up.

    What writing leaves behind for later (checkpoint, statistics) is done before anything is measured.
    """
    last = f"least({rows}, (i + 1) * {_TRANSACTION}) - 1"
    loop = f"""do $$ begin
        for i in 0..{(rows - 1) // _TRANSACTION} loop
            {insert(f"generate_series(i * {_TRANSACTION}, {last}) n")};
            commit;
        end loop;
    end $$"""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("set synchronous_commit = off")
        for statement in (loop, f"vacuum analyze {table}", "checkpoint"):
            await connection.execute(statement, timeout=_FILL_SECONDS)
    finally:
        await connection.close()


class Outboxd(Relay):
    """`outboxd run` with `done: delete`: it deletes each row that it has published."""

    name = "outboxd"
    table = "outboxd.outbox"

    async def set_up(self) -> None:
        """Make the database and its schema."""
        self._dsn = await self._servers.database.create_database("outboxd")
        self._config = self.folder / "relay.yaml"
        self._config.write_text(CONFIG.format(dsn=self._dsn, kafka=self._servers.kafka.bootstrap_servers), "utf-8")
        self._daemon: Child | None = None
        await run_outboxd(self.folder, "migrate", "-c", self._config)

    async def fill(self, topic: str, rows: int) -> None:
        """Insert as an application would: topic, key, payload."""

        def insert(numbers: str) -> str:
            columns = f"'{topic}', 'key-' || n % {KEYS}, convert_to({value_sql('n')}, 'UTF8')"
            return f"insert into {self.table} (topic, key, payload) select {columns} from {numbers}"

        await fill(self._dsn, insert, self.table, rows)

    def command(self) -> list[str]:
        """The daemon's command line."""
        return [str(OUTBOXD), "run", "-c", str(self._config)]

    async def begin(self) -> int:
        """Start the daemon."""
        self._daemon = await start_child(self.folder, "outboxd", self.command())
        return self._daemon.pid

    async def settled(self) -> None:
        """Return when every row is deleted."""
        connection = await asyncpg.connect(self._dsn)
        try:
            await _until_empty(connection, self.table)
        finally:
            await connection.close()

    async def end(self) -> None:
        """Stop the daemon in order."""
        daemon, self._daemon = self._daemon, None
        if daemon is not None:
            await daemon.stop()

    def inserter(self, topic: str) -> Inserter:
        """The same statement for single rows."""
        return PostgresInserter(
            self._dsn,
            f"insert into {self.table} (topic, key, payload) values ($1, $2, $3)",
            lambda n: (topic, key(n).decode(), value(n)),
        )


async def _until_empty(connection: asyncpg.Connection, table: str) -> None:
    async with asyncio.timeout(_SETTLE_SECONDS):
        while await connection.fetchval(f"select exists (select from {table})"):
            await asyncio.sleep(0.05)


class RawProducer(Relay):
    """No relay at all: a process that makes the same records and sends them. What a relay could reach at most."""

    name = "raw send_batch"
    carries_single_rows = False
    _child: Child | None = None
    _arguments: tuple[str, int] = ("", 0)
    _turn = 0

    async def fill(self, topic: str, rows: int) -> None:
        """Nothing to insert: the process makes the rows."""
        self._arguments = (topic, rows)

    async def begin(self) -> int:
        """Start the process."""
        self._turn += 1
        topic, rows = self._arguments
        done = self.folder / f"raw-{self._turn}.done"
        kafka = self._servers.kafka.bootstrap_servers
        self._child = await start_child(
            self.folder, "raw", python_module("bench.raw_producer", kafka, topic, rows, KEYS, done)
        )
        return self._child.pid

    async def end(self) -> None:
        """Stop the process."""
        child, self._child = self._child, None
        if child is not None:
            await child.stop()

    def inserter(self, topic: str) -> Inserter:
        """Single sends from this process, the floor of what a consumer can see."""
        return KafkaInserter(self._servers.kafka.bootstrap_servers, topic)

"""The peer of the relay: Debezium's Postgres connector with its outbox router, warm, in one Connect worker."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from pathlib import Path

import asyncpg

from bench.connect import ConnectWorker
from bench.inserting import Inserter, PostgresInserter
from bench.payload import KEYS, key, value, value_sql
from bench.processes import reset_peak
from bench.relays import Relay, fill
from bench.servers import Servers
from bench.topic_log import end_offsets, log_reader

__all__ = ["TUNED", "WARM_UP_ROWS", "Debezium"]

TUNED: Mapping[str, str] = {
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "5",
    "producer.override.linger.ms": "5",
    "producer.override.batch.size": "524288",
    "statistics.metrics.enabled": "false",
}
"""What was found to serve it: the poll interval is its latency, bigger batches its rate."""

WARM_UP_ROWS = 300_000
"""Drained once before anything is measured, so that the JVM has compiled what it will run."""

_CONNECTOR = "outbox"
_SLOT = "bench"
_CATCH_UP = "debezium-caught-up"
_WARM_UP = "debezium-warm-up"
_PATIENCE = 180
_TABLE = """
create table outbox (
    id uuid primary key,
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    payload jsonb not null
);
create publication bench for table outbox with (publish = 'insert');
"""
_INSERT = "insert into outbox (id, aggregatetype, aggregateid, type, payload)"


class Debezium(Relay):
    """One connector, stopped and resumed by REST, so that the JVM stays and stays warm. It deletes nothing."""

    name = "Debezium, tuned, warm"

    def __init__(self, folder: Path, servers: Servers) -> None:
        super().__init__(folder, servers)
        self._worker = ConnectWorker(folder / "connect", servers.kafka.bootstrap_servers)
        self._caught_up = 0
        self._runs = False

    async def set_up(self) -> None:
        """Start the worker and drain once."""
        self._dsn = await self._servers.database.create_database("debezium")
        for statement in (_TABLE, f"select pg_create_logical_replication_slot('{_SLOT}', 'pgoutput')"):
            await self._servers.database.execute(statement, database="debezium")
        for topic in (_CATCH_UP, _WARM_UP):
            await self._servers.kafka.create_topic(topic, partitions=6)
        await self._worker.start()
        await self._worker.configure(_CONNECTOR, self._settings())
        await self._worker.stop_connector(_CONNECTOR)
        await self._fill(_WARM_UP, WARM_UP_ROWS)
        await self.begin()
        await self._wait_for(_WARM_UP, WARM_UP_ROWS)
        await self.end()

    def _settings(self) -> Mapping[str, str]:
        database = self._servers.database
        return {
            **TUNED,
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "tasks.max": "1",
            "database.hostname": "127.0.0.1",
            "database.port": str(database.port),
            "database.user": "postgres",
            "database.password": database.password,
            "database.dbname": "debezium",
            "topic.prefix": "bench",
            "plugin.name": "pgoutput",
            "slot.name": _SLOT,
            "publication.name": "bench",
            "publication.autocreate.mode": "disabled",
            "table.include.list": "public.outbox",
            "snapshot.mode": "no_data",
            "tombstones.on.delete": "false",
            "transforms": "outbox",
            "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
            "transforms.outbox.route.topic.replacement": "${routedByValue}",
        }

    async def fill(self, topic: str, rows: int) -> None:
        """Let it read what others wrote into the log meanwhile, then insert."""
        await self._catch_up()
        await self._fill(topic, rows)

    async def _catch_up(self) -> None:
        """The log is one for all databases of a server: what lies in it is read here, at nobody's cost."""
        connection = await asyncpg.connect(self._dsn)
        try:
            await connection.execute("truncate outbox")
            await connection.execute(
                f"{_INSERT} values ($1, '{_CATCH_UP}', 'k', 'T', $2::text::jsonb)", uuid.uuid4(), value(0).decode()
            )
        finally:
            await connection.close()
        await self.begin()
        self._caught_up += 1
        await self._wait_for(_CATCH_UP, self._caught_up)
        await self.end()

    async def _fill(self, topic: str, rows: int) -> None:
        def insert(numbers: str) -> str:
            columns = f"gen_random_uuid(), '{topic}', 'key-' || n % {KEYS}, 'T', ({value_sql('n')})::jsonb"
            return f"{_INSERT} select {columns} from {numbers}"

        await fill(self._dsn, insert, "outbox", rows)

    async def _wait_for(self, topic: str, records: int) -> None:
        async with asyncio.timeout(_PATIENCE), log_reader(self._servers.kafka.bootstrap_servers, topic) as reader:
            while sum((await end_offsets(reader)).values()) < records:
                await asyncio.sleep(0.1)

    async def begin(self) -> int:
        """Resume the connector."""
        reset_peak(self._worker.pid)
        self._runs = True
        await self._worker.start_connector(_CONNECTOR)
        return self._worker.pid

    async def end(self) -> None:
        """Stop the connector; the worker stays."""
        if self._runs:
            self._runs = False
            await self._worker.stop_connector(_CONNECTOR)

    async def close(self) -> None:
        """End the worker."""
        await self._worker.remove()

    def inserter(self, topic: str) -> Inserter:
        """Single rows into its table."""
        return PostgresInserter(
            self._dsn,
            f"{_INSERT} values ($1, $2, $3, 'T', $4::text::jsonb)",
            lambda n: (uuid.uuid4(), topic, key(n).decode(), value(n).decode()),
        )

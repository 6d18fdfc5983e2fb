"""Single rows at a steady rate, each with the moment at which its commit returned."""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import uvloop
from aiokafka import AIOKafkaProducer

from bench.payload import key, value

__all__ = ["CONNECTIONS", "Inserter", "KafkaInserter", "PostgresInserter", "insert_steadily"]

CONNECTIONS = 16
_SECONDS = 30


class Inserter(ABC):
    """Writes one row at a time from each of `CONNECTIONS` tasks."""

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def insert(self, task: int, n: int) -> None:
        """Write row ``n``; returns when it is committed."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""


class PostgresInserter(Inserter):
    """Transactions of one statement each; every task has a connection of its own."""

    def __init__(self, dsn: str, statement: str, arguments: Callable[[int], Sequence[object]]) -> None:
        self._dsn = dsn
        self._statement = statement
        self._arguments = arguments
        self._connections: list[asyncpg.Connection] = []
        self._prepared: list[Any] = []

    async def open(self) -> None:
        """Connect and prepare."""
        for _ in range(CONNECTIONS):
            connection = await asyncpg.connect(self._dsn, timeout=_SECONDS)
            self._connections.append(connection)
            self._prepared.append(await connection.prepare(self._statement))

    async def insert(self, task: int, n: int) -> None:
        """One transaction."""
        await self._prepared[task].fetch(*self._arguments(n), timeout=_SECONDS)

    async def close(self) -> None:
        """Disconnect."""
        for connection in self._connections:
            await connection.close(timeout=_SECONDS)


class KafkaInserter(Inserter):
    """Straight to Kafka, without a database."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._producer: Any = None

    async def open(self) -> None:
        """Connect."""
        self._producer = AIOKafkaProducer(bootstrap_servers=self._bootstrap_servers, enable_idempotence=True)
        await self._producer.start()

    async def insert(self, task: int, n: int) -> None:  # noqa: ARG002 -- all tasks share the producer
        """One send, acknowledged."""
        async with asyncio.timeout(_SECONDS):
            await self._producer.send_and_wait(self._topic, value(n), key=key(n))

    async def close(self) -> None:
        """Disconnect."""
        if self._producer is not None:
            await self._producer.stop()


async def insert_steadily(inserter: Inserter, *, rate: int, rows: int) -> list[int]:
    """Write the rows 0 to ``rows``, ``rate`` a second; for each, when its commit returned (Unix time in ns).

    Rows are due by the clock, whether or not earlier ones took long; a task that is late catches up. Runs on a fast
    loop in a thread of its own. Raises TimeoutError when it takes much longer than it should.
    """
    stop = threading.Event()
    try:
        return await asyncio.to_thread(uvloop.run, _insert(inserter, rate, rows, stop))
    finally:
        stop.set()


async def _insert(inserter: Inserter, rate: int, rows: int, stop: threading.Event) -> list[int]:
    committed = [0] * rows

    async def write(task: int) -> None:
        for n in range(task, rows, CONNECTIONS):
            early = began + n / rate - time.perf_counter()
            if early > 0:
                await asyncio.sleep(early)
            if stop.is_set():
                return
            await inserter.insert(task, n)
            committed[n] = time.time_ns()

    try:
        await inserter.open()
        began = time.perf_counter()
        async with asyncio.timeout(_SECONDS + 3 * rows / rate), asyncio.TaskGroup() as tasks:
            for task in range(CONNECTIONS):
                tasks.create_task(write(task), name=f"insert {task}")
    finally:
        await inserter.close()
    return committed

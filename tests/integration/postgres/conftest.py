"""A migrated database, its stores, and a proxy that can fall silent, for the tests of `outboxd.postgres`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
import pytest_asyncio

from outboxd.ports import LeaseToken
from outboxd.postgres.connector import Connector
from outboxd.postgres.lease_store import PostgresLeaseStore
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.postgres.migrator import Migrator
from outboxd.postgres.outbox_store import PostgresOutboxStore
from outboxd.postgres.outbox_table import OutboxTable
from outboxd.records import Headers, Letter, Stage, TimestampType

if TYPE_CHECKING:  # generic in the stubs only
    Db = asyncpg.Connection[asyncpg.Record]
else:
    Db = asyncpg.Connection
TTL = timedelta(seconds=30)


@pytest_asyncio.fixture
async def connector(postgres_dsn: str) -> AsyncIterator[Connector]:
    """A connector to a fresh database with outboxd's schema."""
    connector = Connector(name="shop", dsn=postgres_dsn, statement_timeout=timedelta(seconds=20))
    await connector.open()
    await Migrator(connector).migrate()
    yield connector
    await connector.close()


@pytest_asyncio.fixture
async def db(connector: Connector, postgres_dsn: str) -> AsyncIterator[Db]:
    """An application's own connection to the same database."""
    connection = await asyncpg.connect(postgres_dsn)
    yield connection
    await connection.close()


@pytest.fixture
def leases(connector: Connector) -> PostgresLeaseStore:
    return PostgresLeaseStore(connector)


@pytest.fixture
def letters(connector: Connector) -> PostgresLetterStore:
    return PostgresLetterStore(connector)


async def relay(connector: Connector, *, shards: int = 1, has_actions: bool = False) -> PostgresOutboxStore:
    """A registered relay on the default table."""
    store = PostgresOutboxStore(connector, pipeline="orders", table=OutboxTable(), has_actions=has_actions)
    await store.register(shards)
    return store


async def take(leases: PostgresLeaseStore, name: str = "relay:x:0", owner: str = "a") -> LeaseToken:
    lease = await leases.acquire(name, owner, TTL)
    assert lease is not None
    return lease.token


def letter(number: int = 0, **changes: object) -> Letter:
    values: dict[str, object] = {
        "id": uuid4(),
        "pipeline": "establishment",
        "group": "establishment",
        "handler": "python",
        "topic": "orders.new",
        "partition": 0,
        "offset": number,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": TimestampType.CREATE_TIME,
        "key": b"order-1",
        "value": b'{"total": 10}',
        "headers": Headers([("event", b"created")]),
        "stage": Stage.HANDLE,
        "error_class": "shop.domain.InvalidTransition",
        "error_root_class": "shop.domain.InvalidTransition",
        "error_message": "no",
        "error_traceback": "Traceback",
        "attempts": 1,
        "first_failed_at": datetime(2026, 1, 1, tzinfo=UTC),
        "last_failed_at": datetime(2026, 1, 1, tzinfo=UTC),
        "rule": "rules[0]",
        "fingerprint": "f1",
    }
    return Letter(**(values | changes))  # type: ignore[arg-type]  # the names are the fields'


class Proxy:
    """Forwards TCP to a server until told to fall silent: then it takes bytes and connections and answers nothing."""

    def __init__(self, dsn: str) -> None:
        self._upstream = urlsplit(dsn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.is_silent = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()

    @property
    def dsn(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        address = self._upstream
        return address._replace(netloc=f"{address.username}:{address.password}@127.0.0.1:{port}").geturl()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        there, back = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        self._writers.append(back)
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, target))
            self._tasks.add(task)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65536):
                if not self.is_silent:
                    target.write(data)
                    await target.drain()
            if not self.is_silent:
                target.close()

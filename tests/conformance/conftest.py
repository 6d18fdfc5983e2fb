"""Stages for the suites of the stores, of the disk and of time: the double's and the real adapter's."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from outboxd.postgres.outbox_table import OutboxTable
from tests.conformance.double_stores import double_stores
from tests.conformance.postgres_stores import prepare_database, real_stores
from tests.conformance.telling import Stage, in_real_time, in_virtual_time

_TABLES = {"deleting": OutboxTable(), "keeping": OutboxTable(marks={"published_at": "now()"})}


@pytest.fixture(scope="session")
def store_database(postgres_server: str) -> Iterator[str]:
    """The DSN of the database that all worlds of stores use, one after another."""
    name = f"conformance_{uuid.uuid4().hex[:12]}"
    dsn = urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        with ThreadPoolExecutor(max_workers=1) as thread:  # no event loop of this thread is anybody else's
            thread.submit(lambda: asyncio.run(prepare_database(dsn))).result()
        yield dsn
        admin.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


@pytest.fixture(params=["double", "postgres"])
def stores(request: pytest.FixtureRequest) -> Stage:
    """A world of stores; no relay has registered."""
    if request.param == "double":
        return in_virtual_time(double_stores)
    dsn: str = request.getfixturevalue("store_database")
    return in_real_time(lambda: real_stores(dsn))


@pytest.fixture(params=["double", *_TABLES])
def relays(request: pytest.FixtureRequest) -> Stage:
    """A world of stores in which a relay of two replicas has registered; published rows are deleted, or kept."""
    if request.param == "double":
        return in_virtual_time(lambda: double_stores(is_registered=True))
    dsn: str = request.getfixturevalue("store_database")
    return in_real_time(lambda: real_stores(dsn, _TABLES[request.param], is_registered=True))

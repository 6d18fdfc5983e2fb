"""Real servers for the tests that ask for them: one broker and one Postgres for the run, started when first needed.

`OUTBOXD_TEST_KAFKA` (host:port) and `OUTBOXD_TEST_POSTGRES` (a superuser's DSN) point at servers that run already.
Every test gets topics and databases of its own. A test that stops, kills or freezes a server takes `own_stack`.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from outboxd.dev import DevServerFailed, DevStack, KafkaServer, PostgresServer, record_aot_cache
from outboxd.dev.wire import KafkaWire


class TopicFactory(Protocol):
    """Makes a fresh topic and returns its name."""

    async def __call__(self, *, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str: ...


DatabaseFactory = Callable[[], str]
"""Makes a fresh database and returns its DSN."""


class StackFactory(Protocol):
    """Starts a private stack."""

    async def __call__(self, *, kafka: bool = True, postgres: bool = True) -> DevStack: ...


def _in_own_loop(work: Callable[[], Coroutine[object, object, None]]) -> None:
    # In a thread: an event loop of the main thread is the plugin's business.
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(lambda: asyncio.run(work())).result()


def _new_folder(parent: Path | None = None) -> Path:
    """A folder for servers, readable by the user that root's Postgres runs as, not below a private one of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="outboxd-test-", dir=parent))
    folder.chmod(0o711)
    return folder


@pytest.fixture(scope="session")
def servers_folder() -> Iterator[Path]:
    """Where all servers of the run live; locked, so that the next run sees whether this one still does."""
    _remove_abandoned_folders()
    folder = _new_folder()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Named once it is held: another run that starts now must not take it for an abandoned one.
        (folder / "lock").rename(folder / "run.lock")
        yield folder
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_folders() -> None:
    """What a killed run left on the disk; its processes ended with it."""
    for lock_path in Path(tempfile.gettempdir()).glob("outboxd-test-*/run.lock"):
        with suppress(OSError), lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.parent, ignore_errors=True)


# -- Kafka ---------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka_bootstrap(servers_folder: Path) -> Iterator[str]:
    """``host:port`` of the run's broker."""
    existing = os.environ.get("OUTBOXD_TEST_KAFKA")
    if existing:
        yield existing
        return
    server = KafkaServer(servers_folder / "kafka")

    async def start() -> None:
        # Worth its 15 s: the suite starts a dozen brokers. Without it they only start more slowly.
        with suppress(DevServerFailed):
            await record_aot_cache()
        await server.start()

    _in_own_loop(start)
    yield server.bootstrap_servers
    _in_own_loop(server.remove)


@pytest.fixture
def topic_factory(kafka_bootstrap: str) -> TopicFactory:
    """``await topic_factory(partitions=3)`` makes a topic that no other test knows."""
    host, port = kafka_bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
    wire = KafkaWire(host=host, port=int(port), deadline=15)

    async def make(*, partitions: int = 1, settings: Mapping[str, str] | None = None) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        await wire.make_topic(name, partitions=partitions, settings=settings or {})
        return name

    return make


@pytest_asyncio.fixture
async def topic(topic_factory: TopicFactory) -> str:
    """A fresh topic with one partition."""
    return await topic_factory()


# -- Postgres ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server(servers_folder: Path) -> Iterator[str]:
    """The superuser's DSN of the run's Postgres."""
    existing = os.environ.get("OUTBOXD_TEST_POSTGRES")
    if existing:
        yield existing
        return
    server = PostgresServer(servers_folder / "postgres")
    _in_own_loop(server.start)
    yield server.dsn()
    _in_own_loop(server.remove)


@pytest.fixture
def database_factory(postgres_server: str) -> Iterator[DatabaseFactory]:
    """``database_factory()`` makes an empty database; it is dropped after the test, sessions in it ended."""
    names: list[str] = []
    with psycopg.connect(postgres_server, autocommit=True) as admin:

        def make() -> str:
            name = f"t_{uuid.uuid4().hex[:12]}"
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
            names.append(name)
            return urlsplit(postgres_server)._replace(path=f"/{name}").geturl()

        yield make
        for name in names:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def postgres_dsn(database_factory: DatabaseFactory) -> str:
    """A fresh, empty database."""
    return database_factory()


# -- servers to break ----------------------------------------------------------------------------------------------------


@pytest.fixture
def stack_folder(servers_folder: Path) -> Iterator[Path]:
    """An empty folder in which a test may run servers; deleted afterwards."""
    folder = _new_folder(servers_folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest_asyncio.fixture
async def stack_factory(servers_folder: Path) -> AsyncIterator[StackFactory]:
    """``await stack_factory(postgres=False)`` starts servers that are this test's alone, to stop, kill and freeze."""
    async with AsyncExitStack() as stacks:

        async def make(*, kafka: bool = True, postgres: bool = True) -> DevStack:
            stack = DevStack(_new_folder(servers_folder), kafka=kafka, postgres=postgres)
            stacks.push_async_callback(stack.remove)
            return await stack.start()

        yield make


@pytest_asyncio.fixture
async def own_stack(stack_factory: StackFactory) -> DevStack:
    """A broker and a Postgres of this test's own."""
    return await stack_factory()

"""The relay as a user sees it: nothing is marked before its time, nothing is published twice, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import asyncpg
import pytest
import pytest_asyncio

from tests.acceptance.conftest import MakeDaemon
from tests.acceptance.harness import records_of, until
from tests.conftest import StackFactory, TopicFactory

CONFIG = """
daemon: {{name: relay-test, drain_timeout: 5s}}
connections:
  shop: {{type: postgres, dsn: "{dsn}"}}
  main: {{type: kafka, bootstrap_servers: ["{kafka}"]}}
pipelines:
  outbox:
    outbox: {{connection: shop, lease: 3s}}
    publish:
      connection: main
      shards: 2
      send_deadline: 5s
      topics:
        {topic}: {{}}
        {acted}:
          after_publish:
            - {action}
"""
PYTHON_ACTION = '{type: python, target: "tests.acceptance.functions:act_when_allowed"}'
SQL_ACTION = '{type: sql, statement: "update counter set n = n + 1 where key = $key"}'

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"


class World:
    """One relay, its topics (without and with an action), and the business's own database session."""

    def __init__(self, kafka: str, dsn: str, topic: str, acted: str) -> None:
        self.kafka, self.dsn, self.topic, self.acted = kafka, dsn, topic, acted
        self.configuration = CONFIG.format(dsn=dsn, kafka=kafka, topic=topic, acted=acted, action=PYTHON_ACTION)
        self.with_sql_action = self.configuration.replace(PYTHON_ACTION, SQL_ACTION)

    async def enqueue(self, topic: str, key: str, value: str) -> int:
        connection = await asyncpg.connect(self.dsn)
        try:
            return int(await connection.fetchval("select outboxd.enqueue($1, $2, $3::text)", topic, key, value))
        finally:
            await connection.close()

    async def fetchval(self, query: str) -> Any:
        connection = await asyncpg.connect(self.dsn)
        try:
            return await connection.fetchval(query)
        finally:
            await connection.close()

    async def pending(self) -> int:
        return int(await self.fetchval("select count(*) from outboxd.outbox"))

    async def none_pending(self) -> bool:
        return await self.pending() == 0

    async def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in await records_of(self.kafka, topic)]


@pytest_asyncio.fixture
async def world(kafka_bootstrap: str, postgres_dsn: str, topic_factory: TopicFactory) -> World:
    return World(kafka_bootstrap, postgres_dsn, await topic_factory(), await topic_factory())


async def _held(world: World, row_id: int) -> Connection:
    """A session that holds the row's lock, so that nobody can mark it, until it is closed."""
    connection = await asyncpg.connect(world.dsn)
    await connection.execute("begin")
    assert await connection.fetchval("select id from outboxd.outbox where id = $1 for update", row_id) == row_id
    return connection


async def _let_go(row: Connection) -> None:
    """Let go of the row after the daemon has ended, with its mark undone.

    Postgres learns of a client's death only when it answers: a mark that waits for the lock would go through after all.
    """
    ended = await row.fetch(
        "select pg_terminate_backend(pid, 10000) as is_gone from pg_stat_activity"
        " where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
    )
    assert all(session["is_gone"] for session in ended)
    await row.close()


async def test_a_topic_without_actions_is_published_and_marked(world: World, make_daemon: MakeDaemon) -> None:
    daemon = make_daemon(world.configuration)
    daemon.migrate()
    for number in range(50):
        await world.enqueue(world.topic, f"key-{number % 5}", str(number))
    await daemon.started()
    await until(world.none_pending)
    records = await records_of(world.kafka, world.topic)
    assert sorted(int(record.value or b"") for record in records) == list(range(50))
    for key in range(5):
        of_key = [int(record.value or b"") for record in records if record.key == f"key-{key}".encode()]
        assert of_key == sorted(of_key)
    assert await daemon.terminate() == 0


async def test_a_failing_action_is_retried_alone_and_nothing_is_published_again(
    world: World, make_daemon: MakeDaemon, calls: Callable[[], list[str]], open_gate: Callable[[], None]
) -> None:
    daemon = make_daemon(world.configuration)
    daemon.migrate()
    await world.enqueue(world.acted, "k", "one")
    daemon.start()

    async def tried_twice() -> bool:
        return len(calls()) >= 2

    await until(tried_twice, what="the action is tried again")
    assert await world.pending() == 1
    assert await world.values(world.acted) == [b"one"]
    # Killed in the middle: the broker's answer was stored before the action ran, so the next start goes on with it.
    daemon.kill()
    before = len(calls())
    daemon.start()

    async def tried_again() -> bool:
        return len(calls()) > before

    await until(tried_again, what="the action is tried by the next start")
    open_gate()
    await until(world.none_pending, what="the row is marked once its action succeeded")
    assert await world.values(world.acted) == [b"one"]
    # The same row, the same position, the same idempotency id, each time.
    assert len(set(calls())) == 1


async def test_nothing_is_marked_while_publishing_fails(
    stack_factory: StackFactory,
    make_daemon: MakeDaemon,
    open_gate: Callable[[], None],
    calls: Callable[[], list[str]],
) -> None:
    open_gate()
    stack = await stack_factory()
    for topic in ("plain", "acted"):
        await stack.create_topic(topic)
    world = World(stack.bootstrap_servers, await stack.create_database("shop"), "plain", "acted")
    daemon = make_daemon(world.configuration)
    daemon.migrate()
    await daemon.started()
    await stack.kafka.stop()
    await world.enqueue("plain", "k", "one")
    await world.enqueue("acted", "k", "two")

    async def stalled() -> bool:
        status = await daemon.status("outbox")
        return (status.get("state"), status.get("reason")) == ("STALLED", "broker_unreachable")

    await until(stalled, what="the outage shows")
    assert await world.pending() == 2
    assert calls() == []
    await stack.kafka.start()
    await until(world.none_pending, seconds=60, what="the next pass publishes")
    assert await world.values("plain") == [b"one"]
    assert await world.values("acted") == [b"two"]
    assert len(calls()) == 1


async def test_killed_between_publish_and_mark_nothing_is_lost_or_repeated(
    world: World, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(world.configuration)
    daemon.migrate()
    row = await _held(world, await world.enqueue(world.topic, "k", "one"))
    await world.enqueue(world.topic, "k", "two")
    daemon.start()

    async def published() -> bool:
        return len(await world.values(world.topic)) == 2

    await until(published, what="both rows are in the topic")
    daemon.kill()
    await _let_go(row)
    assert await world.pending() >= 1
    daemon.start()
    await until(world.none_pending, what="the rows are marked by the next start")
    records = await records_of(world.kafka, world.topic)
    # The next start fenced, read the topic's tail and found its rows there.
    assert [record.value for record in records] == [b"one", b"two"]
    assert len({record.headers.get("outboxd-id") for record in records}) == 2


@pytest.mark.parametrize("how", ["kill", "terminate"])
async def test_ended_between_an_action_and_the_mark_nothing_is_lost(
    world: World, make_daemon: MakeDaemon, calls: Callable[[], list[str]], open_gate: Callable[[], None], how: str
) -> None:
    daemon = make_daemon(world.configuration)
    daemon.migrate()
    await daemon.started()
    row_id = await world.enqueue(world.acted, "k", "one")

    async def tried() -> bool:
        return bool(calls())

    await until(tried)
    # The row's action fails still, so the row is there to be held; then the action succeeds and the mark has to wait.
    row = await _held(world, row_id)
    open_gate()
    before = len(calls())

    async def succeeded() -> bool:
        return len(calls()) > before

    await until(succeeded, what="the action succeeds")
    if how == "kill":
        daemon.kill()
    else:
        await daemon.terminate()
    await _let_go(row)
    assert await world.pending() == 1
    daemon.start()
    await until(world.none_pending, what="the row is marked by the next start")
    assert await world.values(world.acted) == [b"one"]
    assert len(set(calls())) == 1


async def test_a_failing_sql_action_keeps_the_row_and_publishes_nothing_again(
    world: World, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(world.with_sql_action)
    daemon.migrate()
    row_id = await world.enqueue(world.acted, "k", "one")
    daemon.start()

    async def tried_twice() -> bool:
        blocked = (await daemon.status("outbox")).get("detail", {}).get("blocked") or []
        return [(block["row_id"], block["attempts"] >= 2) for block in blocked] == [(row_id, True)]

    await until(tried_twice, what="the action is tried again")
    assert await world.pending() == 1
    assert await world.values(world.acted) == [b"one"]
    await world.fetchval("create table counter as select 'k' as key, 0 as n")
    await until(world.none_pending, what="the row is marked once its action succeeded")
    assert await world.fetchval("select n from counter") == 1
    assert await world.values(world.acted) == [b"one"]


async def test_killed_between_a_sql_action_and_the_mark_the_action_has_happened_once(
    world: World, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(world.with_sql_action)
    daemon.migrate()
    await world.fetchval("create table counter as select 'k' as key, 0 as n")
    row = await _held(world, await world.enqueue(world.acted, "k", "one"))
    daemon.start()

    async def action_is_open() -> bool:
        return await world.fetchval("select n from counter for update skip locked") is None

    await until(action_is_open, what="the action has run and waits for the mark to be committed with it")
    daemon.kill()
    await _let_go(row)
    assert await world.fetchval("select n from counter") == 0
    assert await world.pending() == 1
    daemon.start()
    await until(world.none_pending, what="the row is marked by the next start")
    assert await world.fetchval("select n from counter") == 1
    assert await world.values(world.acted) == [b"one"]


async def test_an_unmigrated_database_stalls_the_relay_until_it_is_migrated(
    world: World, make_daemon: MakeDaemon
) -> None:
    daemon = make_daemon(world.configuration)
    daemon.start()

    async def stalled() -> bool:
        return (await daemon.status("outbox")).get("reason") == "schema_behind"

    await until(stalled, what="the missing schema shows")
    daemon.migrate()
    await world.enqueue(world.topic, "k", "one")
    await until(world.none_pending, what="it goes on by itself")

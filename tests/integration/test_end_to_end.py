"""One daemon, a real Kafka and a real Postgres: from the business transaction to the handler, and back from a letter."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import asyncpg
import httpx
import pytest

from outboxd.config import load
from outboxd.enqueue import enqueue
from outboxd.http.server import HttpServer
from outboxd.records import LetterStatus
from outboxd.registry import build_registry
from outboxd.runtime.app import App
from outboxd.runtime.migration import migrate
from tests.conftest import TopicFactory
from tests.integration import end_to_end_handlers as user

YAML = """
daemon: {{name: end-to-end, drain_timeout: 10s}}
http: {{port: 0}}
connections:
  shop: {{type: postgres, dsn: "${{env:E2E_DSN}}"}}
  main: {{type: kafka, bootstrap_servers: ["${{env:E2E_KAFKA}}"]}}
pipelines:
  outbox:
    outbox: {{connection: shop}}
    publish:
      connection: main
      shards: 2
      topics:
        {topic}:
          after_publish:
            - {{type: sql, statement: "update orders set sent_at = now() where id = $key::bigint"}}
  orders:
    consume: {{connection: main, topics: [{topic}], concurrency: 4, commit_every: 100ms}}
    handler: {{type: python, target: "tests.integration.end_to_end_handlers:handle"}}
    errors:
      rules:
        - {{when: {{exception: tests.integration.end_to_end_handlers.Refused}}, then: dead_letter}}
    dead_letters:
      chain:
        - {{type: postgres, connection: shop}}
        - {{type: spool, directory: {spool}}}
  broken:
    consume: {{connection: main, topics: [{topic}]}}
    handler: {{type: python, target: "no.such.module:handle"}}
    dead_letters:
      chain: [{{type: postgres, connection: shop}}]
"""


class Shop:
    """The business's own database session."""

    def __init__(self, connection: asyncpg.Connection[asyncpg.Record], topic: str) -> None:
        self.connection = connection
        self.topic = topic

    async def order(self, number: int, value: object) -> None:
        """One business transaction: the order, and what the world is told of it."""
        async with self.connection.transaction():
            await self.connection.execute("insert into orders (id) values ($1) on conflict do nothing", number)
            await enqueue(self.connection, self.topic, str(number), json.dumps(value))


@pytest.fixture
def _user() -> None:
    user.handled.clear()
    user.refuse.clear()


@pytest.fixture
async def shop(postgres_dsn: str, topic_factory: TopicFactory) -> AsyncIterator[Shop]:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("create table orders (id bigint primary key, sent_at timestamptz)")
    yield Shop(connection, await topic_factory(partitions=2))
    await connection.close()


async def _until(condition: Callable[[], Awaitable[bool]], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.mark.usefixtures("_user")
async def test_from_the_transaction_to_the_handler_and_back_from_a_letter(
    shop: Shop, postgres_dsn: str, kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("E2E_DSN", postgres_dsn)
    monkeypatch.setenv("E2E_KAFKA", kafka_bootstrap)
    monkeypatch.setenv("OUTBOXD_STATE_DIR", str(tmp_path / "state"))
    folder = tmp_path / "pipelines"
    folder.mkdir()
    (folder / "all.yaml").write_text(YAML.format(topic=shop.topic, spool=tmp_path / "spool"))
    registry = build_registry()
    configuration = load([folder], environ=os.environ, registry=registry)
    await migrate(configuration)
    server = HttpServer(host="127.0.0.1", port=0)
    app = App(configuration, registry=registry, surfaces=[server])
    user.refuse.add("impossible")
    await shop.order(1, "first")
    await shop.order(1, "impossible")
    await shop.order(1, "second")
    await shop.order(2, "other")
    control = await app.open()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            await _story(shop, client)
            assert postgres_dsn not in (await client.get("/v1/config")).text
    finally:
        unclean = await app.close()
    assert unclean == []
    assert await shop.connection.fetchval("select count(*) from outboxd.outbox") == 0
    assert {status.state.value for status in control.supervisor.statuses()} <= {"STOPPED", "FAILED"}


async def _story(shop: Shop, client: httpx.AsyncClient) -> None:
    async def settled() -> bool:
        return len(user.handled) == 3 and len((await client.get("/v1/letters")).json()["items"]) == 1

    await _until(settled, 60)
    # The key of the refused record goes on behind it, in order.
    assert [value for key, value in user.handled if key == b"1"] == ["first", "second"]
    assert (b"2", "other") in user.handled

    async def marked() -> bool:
        return bool(await shop.connection.fetchval("select count(*) = 0 from outboxd.outbox"))

    await _until(marked)
    assert await shop.connection.fetchval("select count(*) from orders where sent_at is null") == 0

    async def running() -> bool:
        return {
            (await client.get(f"/v1/pipelines/{name}/status")).json()["state"] for name in ("outbox", "orders")
        } == {"RUNNING"}

    await _until(running)  # the supervisor looks once a second
    states = {each["name"]: each for each in (await client.get("/v1/pipelines")).json()["items"]}
    assert (states["broken"]["state"], states["broken"]["reason"]) == ("FAILED", "plugin_broken")
    (letter,) = (await client.get("/v1/letters", params={"pipeline": "orders"})).json()["items"]
    assert (letter["status"], letter["attempts"], letter["key_text"]) == ("NEW", 1, "1")
    assert letter["error_class"] == "tests.integration.end_to_end_handlers.Refused"
    user.refuse.clear()
    job = (await client.post("/v1/replays", json={"select": {"ids": [letter["id"]]}})).json()

    async def replayed() -> bool:
        return bool((await client.get(f"/v1/replays/{job['id']}")).json()["state"] == "DONE")

    await _until(replayed)
    whole = (await client.get(f"/v1/letters/{letter['id']}")).json()
    assert (whole["status"], whole["value_text"]) == (LetterStatus.RESOLVED.value, '"impossible"')
    assert user.handled[-1] == (b"1", "impossible")
    assert (await client.put("/v1/pipelines/orders/pause", json={"reason": "test"})).status_code == 202

    async def paused() -> bool:
        return bool((await client.get("/v1/pipelines/orders/status")).json()["state"] == "PAUSED")

    await _until(paused)
    before = len(user.handled)
    await shop.order(3, "while paused")
    await _until(marked)
    assert len(user.handled) == before
    await client.put("/v1/pipelines/orders/resume")

    async def handled() -> bool:
        return (b"3", "while paused") in user.handled

    await _until(handled, 60)
    page = (await client.get("/metrics")).text
    assert 'outboxd_pipeline_state{kind="relay",pipeline="outbox",state="RUNNING"} 1.0' in page

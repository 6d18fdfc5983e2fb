"""The two services of the shop, as `outboxd demo` shows them: one daemon, real servers, every claim of the story."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from importlib import resources
from pathlib import Path

import pytest
import pytest_asyncio
from shop import establishment, orders
from shop.database import ESTABLISHMENT, ORDERS
from shop.domain import Status

from outboxd.dev import DevStack
from tests.acceptance.harness import Daemon, committed, produce, records_of, until
from tests.conftest import StackFactory

PIPELINES = resources.files("shop").joinpath("pipelines.yaml").read_text("utf-8")
DLQ = "orders.status_updated.dlq"


class Shop:
    """The daemon and its servers."""

    def __init__(self, stack: DevStack, daemon: Daemon) -> None:
        self.stack = stack
        self.daemon = daemon

    async def reaches(self, order: int, status: Status) -> None:
        async def has_status() -> bool:
            return await orders.order_status(order) is status

        await until(has_status, what=f"order {order} is {status}")

    async def letter(self, pipeline: str, key: int) -> dict[str, object]:
        async def found() -> dict[str, object] | None:
            return next((item for item in await self.daemon.letters(pipeline) if item["key_text"] == str(key)), None)

        return await until(found, what=f"a letter of {key} in {pipeline}'s home")


@pytest_asyncio.fixture
async def shop(
    stack_factory: StackFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Shop]:
    """The whole shop; a parameter has the settings of the orders' dead-letter topic."""
    stack = await stack_factory()
    environment = {
        "KAFKA": stack.bootstrap_servers,
        "SHOP_ORDERS_DSN": await stack.create_database("orders"),
        "SHOP_ESTABLISHMENT_DSN": await stack.create_database("establishment"),
        "SHOP_SPOOL": str(tmp_path / "spool"),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for topic in ("orders.new", "orders.status_updated", "orders.new.dlq"):
        await stack.create_topic(topic)
    await stack.create_topic(DLQ, settings=getattr(request, "param", None))
    await ORDERS.create_tables()
    await ESTABLISHMENT.create_tables()
    daemon = Daemon(tmp_path / "daemon", PIPELINES, environment)
    daemon.migrate()
    await daemon.started()
    yield Shop(stack, daemon)
    daemon.kill()
    await ORDERS.close()
    await ESTABLISHMENT.close()


async def _calls_of(order: int) -> list[float]:
    async with ESTABLISHMENT.transaction() as connection:
        rows = await connection.fetch(
            "select extract(epoch from at)::float8 as at from handler_call where order_id = $1 order by at", order
        )
    return [row["at"] for row in rows]


async def test_the_story_of_the_shop(shop: Shop) -> None:
    # An order goes well: the action marked it as sent, in one transaction with the end of its outbox row.
    order = await orders.create_order("two coffees")
    await shop.reaches(order, Status.ACCEPTED)
    async with ORDERS.transaction() as connection:
        assert await connection.fetchval("select sent_to_establishment_at from orders where id = $1", order) is not None
    (record,) = await records_of(shop.stack.bootstrap_servers, "orders.new")
    assert record.key == str(order).encode()
    assert (record.headers.get("outboxd-id") or b"").decode().endswith(":1")

    # An illegal transition: dead-lettered at once, and the next valid message of the same key is handled.
    await establishment.set_status(order, Status.DELIVERED)
    await establishment.set_status(order, Status.READY)
    await shop.reaches(order, Status.READY)
    (dead,) = await records_of(shop.stack.bootstrap_servers, DLQ)
    headers = {name: (value or b"").decode() for name, value in dead.headers}
    assert dead.key == str(order).encode()
    assert headers["__connect.errors.topic"] == "orders.status_updated"
    assert headers["__connect.errors.partition"] == "0"
    assert headers["__connect.errors.offset"] == "1"
    assert headers["__connect.errors.connector.name"] == "orders"
    assert headers["__connect.errors.exception.class.name"] == "shop.domain.InvalidTransition"
    assert headers["__connect.errors.exception.message"] == f"order {order} is accepted: it cannot become delivered"
    letter = await shop.letter("orders", order)
    assert headers["outboxd-letter-id"] == letter["id"]
    assert (letter["status"], letter["attempts"], letter["sink"]) == ("NEW", 1, "kafka")

    async def moved_on() -> bool:
        return await committed(shop.stack.bootstrap_servers, "orders", "orders.status_updated") == 3

    await until(moved_on, what="the offset passes the letter")

    # Replayed after the fix it is RESOLVED.
    await shop.daemon.ask("letters", "replay", str(letter["id"]))
    await shop.reaches(order, Status.DELIVERED)

    async def resolved() -> bool:
        return [item["status"] for item in await shop.daemon.letters("orders")] == ["RESOLVED"]

    await until(resolved, what="the letter is resolved")
    (listed,) = (await shop.daemon.ask("letters", "list", "--pipeline", "orders"))["items"]
    assert (listed["id"], listed["status"]) == (letter["id"], "RESOLVED")
    assert await shop.daemon.terminate() == 0


async def test_a_transient_error_is_retried_with_growing_waits_and_then_dead_lettered(shop: Shop) -> None:
    await establishment.make_trouble(1, failures=2)
    await establishment.make_trouble(2, failures=99)
    assert [await orders.create_order(item) for item in ("a bagel", "a soup")] == [1, 2]
    await shop.reaches(1, Status.ACCEPTED)
    letter = await shop.letter("establishment", 2)
    assert len(await _calls_of(1)) == 3
    times = await _calls_of(2)
    waits = [after - before for before, after in itertools.pairwise(times)]
    # Without jitter no wait is shorter than configured; a busy machine may make any of them longer.
    assert len(waits) == 4
    assert all(wait >= at_least for wait, at_least in zip(waits, (0.2, 0.4, 0.8, 1.6), strict=True))
    assert (letter["attempts"], letter["sink"], letter["error_class"]) == (
        5,
        "postgres",
        "asyncpg.exceptions.SerializationError",
    )
    assert [item["key_text"] for item in await shop.daemon.letters("establishment")] == ["2"]
    assert await orders.order_status(2) is Status.NEW
    assert os.environ["SHOP_ORDERS_DSN"] not in shop.daemon.log()


@pytest.mark.parametrize("shop", [{"max.message.bytes": "100"}], indirect=True)
async def test_while_a_first_sink_is_down_the_next_one_has_the_letter_and_then_the_table(shop: Shop) -> None:
    kafka = shop.stack.bootstrap_servers
    order = await orders.create_order("a cake")
    await shop.reaches(order, Status.ACCEPTED)
    # The orders' dead-letter topic refuses: the letter of the illegal message is in the table at once.
    await establishment.set_status(order, Status.DELIVERED)
    letter = await shop.letter("orders", order)
    assert (letter["status"], letter["sink"]) == ("NEW", "postgres")
    assert await records_of(kafka, DLQ) == []
    assert await orders.order_status(order) is Status.ACCEPTED

    # The establishment's Postgres is stopped: a record that is no order at all has its letter in the topic.
    await shop.stack.postgres.stop()
    await produce(kafka, "orders.new", key="9", value=b"no order")

    async def in_topic() -> bool:
        return [record.key for record in await records_of(kafka, "orders.new.dlq")] == [b"9"]

    await until(in_topic, what="the letter is in the next sink")

    async def moved_on() -> bool:
        return await committed(kafka, "establishment", "orders.new") == 2

    await until(moved_on, what="the offset passes the letter")
    await shop.stack.postgres.start()

    async def at_home() -> list[tuple[object, object]]:
        return [(item["key_text"], item["sink"]) for item in await shop.daemon.letters("establishment")]

    assert await until(at_home, seconds=60, what="the drain brings it home") == [("9", "kafka")]

"""The two services of the shop and their daemon, as `outboxd demo` shows them, and the story that they tell."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path

import pytest
from shop import establishment, orders
from shop.database import ESTABLISHMENT, ORDERS
from shop.domain import Status

from outboxd.dev import DevStack
from tests.acceptance.harness import Daemon, committed, records_of, until

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


@asynccontextmanager
async def open_shop(
    stack: DevStack,
    monkeypatch: pytest.MonkeyPatch,
    make_daemon: Callable[[str, Mapping[str, str]], Daemon],
    *,
    spool: Path,
    dlq_settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Shop]:
    """The shop with everything that it needs; the daemon is killed at the end.

    ``make_daemon`` gets the configuration and its environment.
    """
    environment = {
        "KAFKA": stack.bootstrap_servers,
        "SHOP_ORDERS_DSN": await stack.create_database("orders"),
        "SHOP_ESTABLISHMENT_DSN": await stack.create_database("establishment"),
        "SHOP_SPOOL": str(spool),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for topic in ("orders.new", "orders.status_updated", "orders.new.dlq"):
        await stack.create_topic(topic)
    await stack.create_topic(DLQ, settings=dlq_settings)
    await ORDERS.create_tables()
    await ESTABLISHMENT.create_tables()
    daemon = make_daemon(PIPELINES, environment)
    try:
        daemon.migrate()
        await daemon.started()
        yield Shop(stack, daemon)
    finally:
        daemon.kill()
        await ORDERS.close()
        await ESTABLISHMENT.close()


async def tell_the_story(shop: Shop) -> None:
    """Orders that go well, an illegal message, its letter, the replay; then the daemon is asked to end."""
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

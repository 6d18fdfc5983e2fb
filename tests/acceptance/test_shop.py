"""The two services of the shop, as `outboxd demo` shows them: one daemon, real servers, every claim of the story."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio
from shop import establishment, orders
from shop.database import ESTABLISHMENT
from shop.domain import Status

from tests.acceptance.harness import Daemon, committed, produce, records_of, until
from tests.acceptance.shop_story import DLQ, Shop, open_shop, tell_the_story
from tests.conftest import StackFactory


@pytest_asyncio.fixture
async def shop(
    stack_factory: StackFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> AsyncIterator[Shop]:
    """The whole shop; a parameter has the settings of the orders' dead-letter topic."""

    def make_daemon(configuration: str, environment: Mapping[str, str]) -> Daemon:
        return Daemon(tmp_path / "daemon", configuration, environment)

    stack = await stack_factory()
    settings = getattr(request, "param", None)
    async with open_shop(stack, monkeypatch, make_daemon, spool=tmp_path / "spool", dlq_settings=settings) as shop:
        yield shop


async def _calls_of(order: int) -> list[float]:
    async with ESTABLISHMENT.transaction() as connection:
        rows = await connection.fetch(
            "select extract(epoch from at)::float8 as at from handler_call where order_id = $1 order by at", order
        )
    return [row["at"] for row in rows]


async def test_the_story_of_the_shop(shop: Shop) -> None:
    await tell_the_story(shop)


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

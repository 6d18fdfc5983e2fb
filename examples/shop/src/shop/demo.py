"""The story of the demo: orders that go well, a database that stumbles, and a message that may not be."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from outboxd.dev.reading import read_topic
from shop import establishment, orders
from shop.database import ESTABLISHMENT, ORDERS
from shop.domain import Status
from shop.stage import Stage, StoryBroken

__all__ = ["tell"]

_DLQ: Final = "orders.status_updated.dlq"
_FOLDER: Final = "outboxd-demo-"


def tell(folder: Path | None) -> Mapping[str, Any]:
    """Play the story on servers in the folder (None: one of its own, removed afterwards), printing as it goes."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        return asyncio.run(_Story().play(folder))
    _remove_abandoned_folders()
    with tempfile.TemporaryDirectory(prefix=_FOLDER, ignore_cleanup_errors=True) as own:
        Path(own).chmod(0o711)  # root's Postgres runs as another user
        return asyncio.run(_Story().play(Path(own)))


def _remove_abandoned_folders() -> None:
    """What a killed demo left on the disk; its processes ended with it. One that still runs holds its lock."""
    for lock_path in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*/servers/lock"):
        with suppress(OSError), lock_path.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock_path.parents[1], ignore_errors=True)


class _Story:
    """Tells what happens, with the seconds since it began."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._facts: dict[str, Any] = {}

    def _title(self, text: str) -> None:
        print(f"\n{text}", flush=True)

    def _say(self, text: str) -> None:
        print(f"  {time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    async def play(self, folder: Path) -> Mapping[str, Any]:
        """The whole story; what happened, in figures."""
        print("outboxd demo: two services, their outboxes, one illegal message", flush=True)
        self._title("1. A real Kafka and a real Postgres, on this computer")
        self._say("starting both (the first time they are downloaded) ...")
        async with Stage(folder) as stage:
            self._say(f"Kafka at {stage.stack.bootstrap_servers}, Postgres with databases `orders` and `establishment`")
            await stage.outboxd("migrate", "-c", str(stage.config))
            self._say("`outboxd migrate` made the schema `outboxd` in both")
            await stage.start_daemon()
            self._say("`outboxd run`: two relays and two consumers are RUNNING")
            await self._show(stage, "status")
            await self._an_order(stage)
            await self._a_stumble(stage)
            order = await self._an_illegal_message(stage)
            await self._a_replay(stage, order)
            self._title("6. The end")
            code = await stage.stop_daemon()
            if code != 0:
                raise StoryBroken(f"the daemon ended with {code} instead of 0")
            self._say("SIGTERM: everything in hand was finished, the daemon ended with 0")
        self._facts["seconds"] = round(time.monotonic() - self._began, 1)
        print(f"\nThe story took {self._facts['seconds']:g} s; its processes are gone.", flush=True)
        return self._facts

    async def _an_order(self, stage: Stage) -> None:
        self._title("2. An order goes well")
        order = await orders.create_order("two coffees")
        self._say(f"order {order}: row in `orders` and event in the outbox, in one transaction")
        await stage.until("the action marked the order as sent", lambda: _is_sent(order))
        self._say("the relay published it to `orders.new`; the action set `sent_to_establishment_at`,")
        self._say("in one transaction with the end of the outbox row")
        await stage.until("the order is accepted", lambda: _has_status(order, Status.ACCEPTED))
        self._say("the establishment took it and said so through its own outbox: the order is `accepted`")

    async def _a_stumble(self, stage: Stage) -> None:
        self._title("3. The establishment's database stumbles")
        order = await _with_trouble("a bagel", failures=2)
        failed = await _with_trouble("a soup", failures=99)
        await stage.until("the third call succeeds", lambda: _has_status(order, Status.ACCEPTED))
        waits = await _waits_between_calls(order)
        self._say(f"order {order}: serialisation failure (40001) twice, accepted at the third call;")
        self._say(f"waits between the calls: {_seconds(waits)}. Nothing was dead-lettered")
        letter = await stage.until(
            "a letter of the fifth failure", lambda: self._letter(stage, "establishment", failed)
        )
        waits = await _waits_between_calls(failed)
        self._say(f"order {failed}: failed five times, waits {_seconds(waits)}, then dead-lettered:")
        self._say(f"letter {letter['id']} in the establishment's own Postgres")
        self._facts["calls_before_letter"] = len(waits) + 1

    async def _an_illegal_message(self, stage: Stage) -> int:
        self._title("4. A message that may not be")
        order = await orders.create_order("a cake")
        await stage.until("the order is accepted", lambda: _has_status(order, Status.ACCEPTED))
        await establishment.set_status(order, Status.DELIVERED)
        await establishment.set_status(order, Status.READY)
        self._say(f"order {order} is `accepted`; the establishment says `delivered`, which may not follow,")
        self._say("and then `ready`, which may")
        record = (await stage.until("a record in the dead-letter topic", lambda: read_topic(stage.stack, _DLQ)))[0]
        self._say(f"at once, without retries, in topic `{_DLQ}`:")
        for name in ("topic", "partition", "offset", "exception.class.name", "exception.message"):
            value = record.headers.get(f"__connect.errors.{name}") or b""
            self._say(f"    __connect.errors.{name}: {value.decode()}")
        await stage.until("the next message of the same key is handled", lambda: _has_status(order, Status.READY))
        self._say("the next message of the same key was handled: the order is `ready`, the partition goes on")
        letter = await stage.until("the letter comes home", lambda: self._letter(stage, "orders", order))
        self._say("the drain carried the letter into the table, where it can be listed and shown:")
        await self._show(stage, "letters", "list", "--pipeline", "orders")
        await self._show(stage, "letters", "show", letter["id"], until="first failed")
        self._facts["letter"] = letter["id"]
        return order

    async def _a_replay(self, stage: Stage, order: int) -> None:
        self._title("5. The letter is replayed")
        letter = self._facts["letter"]
        self._say("the order is `ready` by now, so `delivered` may follow:")
        await self._show(stage, "letters", "replay", letter)

        async def is_resolved() -> bool:
            return bool((await stage.outboxd("letters", "show", letter))["status"] == "RESOLVED")

        await stage.until("the letter is resolved", is_resolved)
        await stage.until("the order is delivered", lambda: _has_status(order, Status.DELIVERED))
        self._say("the handler took it this time: the letter is RESOLVED, the order `delivered`")

    async def _show(self, stage: Stage, *command: str, until: str | None = None) -> None:
        """A command and what it prints, up to the line that begins with ``until``."""
        print(f"\n           $ outboxd {' '.join(command)}")
        for line in await stage.printed(*command):
            if until is not None and line.startswith(until):
                break
            if line:
                print(f"           {line}", flush=True)

    async def _letter(self, stage: Stage, pipeline: str, order: int) -> Mapping[str, Any] | None:
        letters = await stage.outboxd("letters", "list", "--pipeline", pipeline, "--key", str(order))
        return letters[0] if letters else None


async def _with_trouble(item: str, failures: int) -> int:
    """An order whose handler will fail so often; the trouble is made before the order can get there."""
    async with ORDERS.transaction() as connection:
        upcoming: int = 1 + await connection.fetchval("select last_value from orders_id_seq")
    await establishment.make_trouble(upcoming, failures)
    order = await orders.create_order(item)
    if order != upcoming:
        raise StoryBroken(f"expected order {upcoming}, got {order}")
    return order


async def _is_sent(order: int) -> bool:
    async with ORDERS.transaction() as connection:
        return bool(
            await connection.fetchval("select sent_to_establishment_at is not null from orders where id = $1", order)
        )


async def _has_status(order: int, status: Status) -> bool:
    return await orders.order_status(order) is status


async def _waits_between_calls(order: int) -> list[float]:
    async with ESTABLISHMENT.transaction() as connection:
        rows = await connection.fetch(
            "select extract(epoch from at - lag(at) over (order by at))::float8 as wait"
            " from handler_call where order_id = $1 order by at",
            order,
        )
    return [row["wait"] for row in rows if row["wait"] is not None]


def _seconds(waits: list[float]) -> str:
    return ", ".join(f"{wait:.1f} s" for wait in waits)

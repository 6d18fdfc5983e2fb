"""A relay on doubles: clock, leases, outbox table and broker, and short words for what tests do with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from opentelemetry.metrics import NoOpMeter

from outboxd.api import Action, Connections, TransactionalAction
from outboxd.ids import HEADER_ROW_ID, parse_row_identity, shard_lease
from outboxd.pipeline.relay.relay import ActionStep, RelayRun
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.pipeline.run import Health
from outboxd.records import Published, RawRecord
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.metrics import Instruments
from outboxd.testing.fakes.clock import FakeClock, InlineExecutor, SeededRandom
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from outboxd.testing.fakes.lease import FakeLeases
from outboxd.testing.fakes.outbox import FakeOutbox


class ListLogger:
    """Keeps what is logged."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def debug(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    info = warning = error = debug

    def events(self) -> list[str]:
        return [event for event, _ in self.lines]


class RecordingAction:
    """An action that writes down what it got; ``fails`` decides which rows it refuses."""

    def __init__(self, fails: Callable[[Published], bool] = lambda _: False) -> None:
        self.fails = fails
        self.calls: list[Published] = []
        self.done: list[int] = []

    async def open(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        await asyncio.sleep(0)

    async def act(self, published: Published, context: object) -> None:
        self.calls.append(published)
        await asyncio.sleep(0.001)
        if self.fails(published):
            raise RuntimeError(f"row {published.row_id} is refused")
        self.done.append(published.row_id)


class SqlAction:
    """An action on the outbox's own connection."""

    async def open(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        await asyncio.sleep(0)

    def statement(self, published: Published) -> tuple[str, Sequence[object]]:
        return "update orders set sent = true where id = $1", [published.row_id]


def no_instruments() -> Instruments:
    return Instruments(NoOpMeter("test"))


def step(action: object, name: str = "action") -> ActionStep:
    return ActionStep(name=name, action=cast("Action | TransactionalAction", action))


class World:
    """Everything around a relay. Make it inside a running loop."""

    def __init__(self, *, shards: int = 2, topics: Sequence[str] = ("orders",), seed: int = 0) -> None:
        self.clock = FakeClock()
        self.leases = FakeLeases(self.clock)
        self.outbox = FakeOutbox(self.leases.holds, self.clock, shards=shards)
        self.broker = FakeCluster(self.clock)
        self.logger = ListLogger()
        self.random = SeededRandom(seed)
        for topic in topics:
            self.broker.create_topic(topic, partitions=2)
        self.outbox.on_mark = self._must_be_acknowledged
        self.violations: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._starts = 0

    def _must_be_acknowledged(self, row_id: int) -> None:
        """Invariant 1: a row that is marked stands in the log."""
        if row_id not in self.broker.row_ids:
            self.violations.append(f"row {row_id} was marked and is not in the log")

    def relay(
        self,
        actions: Mapping[str, Sequence[ActionStep]] | None = None,
        *,
        owner: str | None = None,
        compression: str = "none",
        listed: Sequence[str] | None = None,
        lease: timedelta = timedelta(seconds=10),
        send_deadline: timedelta = timedelta(seconds=30),
        poll_max: timedelta = timedelta(milliseconds=50),
    ) -> RelayRun:
        self._starts += 1
        publish: dict[str, Any] = {"connection": "main", "compression": compression, "send_deadline": send_deadline}
        if listed is not None:
            publish["topics"] = {topic: {} for topic in listed}
        outbox = {"connection": "shop", "lease": lease, "poll_max": poll_max}
        settings = RelaySettings.model_validate({"outbox": outbox, "publish": publish})
        return RelayRun(
            name="shop-outbox",
            settings=settings,
            outbox=self.outbox,
            leases=self.leases,
            brokers=self.broker,
            admin=self.broker.admin(),
            clock=self.clock,
            random=self.random,
            executor=InlineExecutor(),
            telemetry=Telemetry(self.logger, no_instruments()),
            logger=self.logger,
            connections=cast("Connections", {}),
            owner=owner or f"daemon-{self._starts}",
            actions=actions,
        )

    def start(self, relay: RelayRun) -> asyncio.Task[None]:
        task = asyncio.create_task(relay.run(), name="relay")
        self.tasks.append(task)
        return task

    async def kill(self, task: asyncio.Task[None]) -> None:
        """End a run as a crash does, as far as its leases and rows are concerned."""
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0, every: float = 0.01) -> None:
        """Let virtual time pass until the condition holds."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():
                    self.check()
                    await asyncio.sleep(every)
        except TimeoutError:
            raise AssertionError(
                f"did not come true within {seconds} s: pending {self.outbox.unmarked[:20]}, log {self.published_ids()[-20:]}, "
                f"logged {self.logger.lines[-12:]}"
            ) from None

    def check(self) -> None:
        """Fail when a run ended by an error, or an invariant is broken."""
        assert not self.violations, self.violations
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                raise AssertionError("the relay ended") from task.exception()

    async def drained(self, seconds: float = 60.0) -> None:
        await self.until(lambda: not self.outbox.unmarked, seconds)

    def records(self, topic: str = "orders") -> list[RawRecord]:
        return self.broker.records(topic)

    def published_ids(self) -> list[int]:
        """Row ids of every record in every topic."""
        found = []
        for topic in self.broker.topics:
            for record in self.broker.records(topic):
                identity = parse_row_identity(record.headers.get(HEADER_ROW_ID))
                assert identity is not None
                found.append(identity[1])
        return found

    def values(self, key: bytes, topic: str = "orders") -> list[bytes | None]:
        """What the topic holds of one key, in log order."""
        return [record.value for record in self.records(topic) if record.key == key]

    def lease_name(self, shard: int) -> str:
        return shard_lease(self.outbox.registration.relay_id, shard)


async def reason(world: World, relay: RelayRun, wanted: str, seconds: float = 15.0) -> Health:
    """The health once it stalls for the wanted reason."""

    def stalls() -> bool:
        stall = relay.health().stall
        return stall is not None and stall.reason == wanted

    await world.until(stalls, seconds)
    return relay.health()


async def stopped(relay: RelayRun, task: asyncio.Task[None], seconds: float = 25.0) -> None:
    """Drain the relay within a deadline."""
    relay.stop()
    async with asyncio.timeout(seconds):
        await task

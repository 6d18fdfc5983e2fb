"""A consumer pipeline on doubles: cluster, chain, handler and telemetry in memory, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from opentelemetry.metrics import NoOpMeterProvider

from outboxd.api import HandlerContext
from outboxd.errors import ChainExhausted, Undecodable
from outboxd.pipeline.consumer.consumer import ConsumerRun
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.letters.classification import Classification, Rule, When
from outboxd.records import Letter, RawRecord, Record, Verdict
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.metrics import Instruments
from outboxd.testing.fakes.clock import FakeClock, InlineExecutor, SeededRandom
from outboxd.testing.fakes.kafka.cluster import FakeCluster

Answer = Callable[[Record], Awaitable[Verdict | None]]


class Log:
    """A logger that keeps what it is told."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def _keep(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.lines.append((level, event, fields))

    def debug(self, event: str, **fields: object) -> None:
        self._keep("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._keep("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._keep("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._keep("error", event, fields)

    def fields_of(self, event: str) -> list[dict[str, object]]:
        return [fields for _, name, fields in self.lines if name == event]


class ListChain:
    """A chain that keeps letters in a list; ``is_down`` and ``refuses`` make it fail."""

    def __init__(self) -> None:
        self.letters: list[Letter] = []
        self.is_down = False
        self.hangs = False
        self.refuses: Callable[[Letter], bool] = lambda letter: False
        self.tries = 0
        self.is_closed = False

    async def open(self) -> None:
        return None

    async def write(self, letters: Sequence[Letter]) -> Sequence[str]:
        self.tries += 1
        await asyncio.sleep(0.001)
        if self.hangs:
            await asyncio.sleep(3600)
        if self.is_down:
            raise ChainExhausted("no sink answers")
        stored: dict[UUID, str] = {}
        for letter in letters:
            if not self.refuses(letter):
                if letter.id not in {known.id for known in self.letters}:
                    self.letters.append(letter)
                stored[letter.id] = "list"
        if len(stored) < len(letters):
            raise ChainExhausted("refused by all", reason="letter_refused", stored=stored)
        return ["list"] * len(letters)

    async def close(self) -> None:
        self.is_closed = True

    def status(self) -> Mapping[str, object]:
        return {"in_use": "list"}


class RawCodec:
    """Values as they are; ``bad`` ones cannot be decoded."""

    def __init__(self) -> None:
        self.bad: set[bytes | None] = set()
        self.raises: BaseException = Undecodable("not text")

    def decode(self, raw: bytes | None, record: RawRecord) -> object:
        if raw in self.bad:
            raise self.raises
        return raw


class ScriptedHandler:
    """Answers by ``answer``; keeps every call, and how many run at once, in all and per key."""

    def __init__(self, answer: Answer | None = None) -> None:
        self.answer = answer or self._nothing
        self.calls: list[Record] = []
        self.done: list[Record] = []
        self.running: list[Record] = []
        self.most_at_once = 0
        self.overlaps: list[tuple[Record, Record]] = []
        self.opened = 0
        self.closed = 0
        self.context: HandlerContext | None = None

    async def open(self) -> None:
        self.opened += 1

    async def close(self) -> None:
        self.closed += 1

    async def handle(self, record: Record, context: HandlerContext) -> Verdict | None:
        self.context = context
        self.calls.append(record)
        lane = (record.partition, record.key)
        self.overlaps += [(o, record) for o in self.running if (o.partition, o.key) == lane and record.key is not None]
        self.running.append(record)
        self.most_at_once = max(self.most_at_once, len(self.running))
        try:
            verdict = await self.answer(record)
        finally:
            self.running.remove(record)
        self.done.append(record)
        return verdict

    async def _nothing(self, record: Record) -> Verdict | None:
        return None

    def offsets(self) -> list[int]:
        return [record.offset for record in self.done]


class NoConnections:
    """No connection is known."""

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def postgres(self, name: str) -> Any:
        raise KeyError(name)

    def kafka(self, name: str) -> Any:
        raise KeyError(name)

    def home(self, name: str) -> Any:
        raise KeyError(name)


def settings_of(
    consume: Mapping[str, object] | None = None,
    errors: Mapping[str, object] | None = None,
    timeout: str = "30s",
    **dead_letters: object,
) -> ConsumerSettings:
    """The settings as the YAML gives them."""
    retry = {"jitter": "none", "initial": "1s", **dict((errors or {}).get("retry", {}))}  # type: ignore[call-overload]
    return ConsumerSettings.model_validate(
        {
            "consume": {
                "connection": "main",
                "topics": ["orders"],
                "group": "shop",
                "decode": "raw",
                **(consume or {}),
            },
            "handler": {"type": "python", "timeout": timeout},
            "errors": {**(errors or {}), "retry": retry},
            "dead_letters": dead_letters,
        }
    )


def rule(then: Verdict, *exceptions: str) -> Rule:
    """A rule on exception classes."""
    return Rule(when=When(exceptions=exceptions), then=then)


class Rig:
    """One replica; ``start`` it as often as it is to be restarted."""

    def __init__(
        self,
        cluster: FakeCluster,
        *,
        handler: Any = None,
        settings: ConsumerSettings | None = None,
        rules: Sequence[Rule] = (),
        otherwise: Verdict = Verdict.RETRY,
        chain: ListChain | None = None,
        **more: Any,
    ) -> None:
        self.cluster = cluster
        self.handler: Any = handler or ScriptedHandler()
        self.settings = settings or settings_of()
        self.classification = Classification(pipeline="shop", rules=rules, otherwise=otherwise)
        self.chain = chain or ListChain()
        self.codec = RawCodec()
        self.log = Log()
        self.telemetry = Telemetry(self.log, Instruments(NoOpMeterProvider().get_meter("test")))
        self.random = SeededRandom(7)
        self.more = more
        self.run = self.make()
        self.task: asyncio.Task[None] | None = None

    def make(self) -> ConsumerRun:
        arguments: dict[str, Any] = {
            "name": "shop",
            "settings": self.settings,
            "brokers": self.cluster,
            "handler": self.handler,
            "handler_id": "python:shop",
            "codec": self.codec,
            "classification": self.classification,
            "chain": self.chain,
            "connections": NoConnections(),
            "logger": self.log,
            "clock": FakeClock(),
            "random": self.random,
            "executor": InlineExecutor(),
            "telemetry": self.telemetry,
            "owner": "replica-1",
        }
        return ConsumerRun(**{**arguments, **self.more})

    async def start(self) -> None:
        self.task = asyncio.create_task(self.run.run())
        await asyncio.sleep(0.1)

    async def stop(self) -> None:
        assert self.task is not None
        self.run.stop()
        await self.task
        self.run = self.make()

    async def cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.wait({self.task})
        self.run = self.make()

    def stall(self) -> str | None:
        stall = self.run.health().stall
        return None if stall is None else stall.reason

    @property
    def member(self) -> Any:
        return self.cluster.consumers[-1]


async def eventually(is_so: Callable[[], object], seconds: float = 120.0, step: float = 0.01) -> None:
    """Wait in virtual time until it is so."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + seconds
    while not is_so():
        assert loop.time() < give_up, "it never came to be"
        await asyncio.sleep(step)


def leftover_tasks() -> list[str]:
    """The names of tasks beside the test's own."""
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]

"""Doubles of the runtime's neighbours: runs that do as they are told, and telemetry that remembers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from opentelemetry.sdk.metrics import MeterProvider

from outboxd.errors import DatabaseUnreachable
from outboxd.lifecycle import PipelineState
from outboxd.pipeline.run import Health, PipelineRun
from outboxd.ports import Target
from outboxd.runtime.actor import PipelineActor, Timing
from outboxd.runtime.claims import Claims
from outboxd.runtime.supervisor import Supervisor
from outboxd.telemetry.emitter import Event, Telemetry
from outboxd.telemetry.metrics import Instruments
from outboxd.testing.fakes.clock import FakeClock


class Recorder(Telemetry):
    """Remembers events instead of writing them."""

    def __init__(self) -> None:
        super().__init__(_Silent(), Instruments(MeterProvider().get_meter("test")))
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.events.append(event)


class _Silent:
    def debug(self, event: str, **fields: object) -> object:
        return None

    info = warning = error = debug


class ScriptedRun:
    """A run that works until it is stopped, or ends as the test says."""

    def __init__(self) -> None:
        self.stopping = asyncio.Event()
        self.ending: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
        self.now = Health(is_ready=True)
        self.ends_when_stopped = True
        self.ignores_cancellation = False
        self.has_ended = False

    async def run(self) -> None:
        while True:
            stopping: asyncio.Future[object] = asyncio.ensure_future(self.stopping.wait())
            try:
                ending: asyncio.Future[object] = self.ending  # type: ignore[assignment]  # invariant only for writers
                await asyncio.wait({stopping, ending}, return_when=asyncio.FIRST_COMPLETED)
                if self.ending.done():
                    error = self.ending.result()
                    if error is not None:
                        raise error
                    break
                if self.ends_when_stopped:
                    break
                await asyncio.shield(self.ending)
            except asyncio.CancelledError:
                if not self.ignores_cancellation:
                    raise
            finally:
                stopping.cancel()
        self.has_ended = True

    def stop(self) -> None:
        self.stopping.set()

    def health(self) -> Health:
        return self.now


class Factory:
    """Makes a `ScriptedRun` per start, or raises what the test put into ``broken``."""

    def __init__(self) -> None:
        self.runs: list[ScriptedRun] = []
        self.broken: BaseException | None = None
        self.prepare: Callable[[ScriptedRun], None] = lambda run: None

    async def __call__(self) -> PipelineRun:
        if self.broken is not None:
            raise self.broken
        run = ScriptedRun()
        self.prepare(run)
        self.runs.append(run)
        return run


class MemoryTargets:
    """The port `TargetStore` in memory; ``is_down`` makes it unreachable."""

    def __init__(self) -> None:
        self.stored: dict[str, Target] = {}
        self.is_down = False

    async def load(self) -> Mapping[str, Target]:
        self._check()
        return dict(self.stored)

    async def save(self, pipeline: str, target: Target) -> None:
        self._check()
        self.stored[pipeline] = target

    def _check(self) -> None:
        if self.is_down:
            raise DatabaseUnreachable("the state's database does not answer")


@dataclass
class World:
    """A supervisor over scripted pipelines, in virtual time."""

    names: tuple[str, ...] = ("orders",)
    timing: Timing = field(default_factory=Timing)
    is_shared: bool = False
    targets: MemoryTargets = field(default_factory=MemoryTargets)

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.telemetry = Recorder()
        self.moves: list[tuple[str, PipelineState]] = []
        self.factories: dict[str, Factory] = {}
        self.claims = Claims()
        self.gone: list[tuple[str, bool]] = []
        self.supervisor = Supervisor(
            [self.actor(name) for name in self.names],
            targets=self.targets,
            is_shared=self.is_shared,
            clock=self.clock,
            telemetry=self.telemetry,
            on_gone=lambda name, is_clean: self.gone.append((name, is_clean)),
        )

    def actor(self, name: str, *wanted: str) -> PipelineActor:
        """An actor with a factory of its own, which claims its name and what else is ``wanted``."""
        factory = self.factories[name] = Factory()
        return PipelineActor(
            name=name,
            kind="consumer",
            build=factory,
            clock=self.clock,
            telemetry=self.telemetry,
            timing=self.timing,
            observer=lambda pipeline, _before, after: self.moves.append((pipeline, after)),
            claims=self.claims,
            wanted=frozenset({f"pipeline {name}", *wanted}),
        )

    async def open(self) -> None:
        self.supervisor.open()
        await asyncio.sleep(0.1)

    def state(self, name: str = "orders") -> PipelineState:
        return self.supervisor.status(name).state

    def last(self, name: str = "orders") -> ScriptedRun:
        return self.factories[name].runs[-1]

    def is_alive(self) -> bool:
        return self.supervisor.is_alive

    def is_settled(self) -> bool:
        return self.supervisor.is_settled

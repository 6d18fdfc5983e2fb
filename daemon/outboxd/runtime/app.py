"""The composition root: the one place that knows everything. It opens in order and closes in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Final, Protocol

from outboxd.config import Configuration, ConfigurationOrigin, PipelineSettings
from outboxd.errors import ConfigurationError
from outboxd.lifecycle import PipelineState
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.pipeline.run import PipelineRun
from outboxd.ports import TargetStore
from outboxd.postgres.settings import PostgresSettings
from outboxd.postgres.target_store import PostgresTargetStore
from outboxd.registry import Hooks, Registry
from outboxd.runtime.actor import PipelineActor
from outboxd.runtime.changes import Changes, changes
from outboxd.runtime.claims import Claims, claims_of
from outboxd.runtime.clock import SystemClock
from outboxd.runtime.connections import ConnectionUse, connector
from outboxd.runtime.consumers import build_consumer
from outboxd.runtime.control import Control, PluginInfo
from outboxd.runtime.files import OsFiles
from outboxd.runtime.health import LoopWatch
from outboxd.runtime.homes import Homes
from outboxd.runtime.loop import log_unhandled
from outboxd.runtime.process import Process
from outboxd.runtime.random import SystemRandom
from outboxd.runtime.relays import build_relay
from outboxd.runtime.reload import Reloader
from outboxd.runtime.runs import Timing
from outboxd.runtime.secrets import secrets_of
from outboxd.runtime.signals import SignalWatch
from outboxd.runtime.stages import Stages
from outboxd.runtime.supervisor import Supervisor
from outboxd.runtime.targets import FileTargetStore, default_target_file
from outboxd.telemetry.configuration import PipelineRemoved
from outboxd.telemetry.daemon import DaemonStarted, DaemonStopped, DrainBegan
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.exporters import Metrics, resource
from outboxd.telemetry.logs import get_logger
from outboxd.telemetry.metrics import Instruments
from outboxd.telemetry.redaction import Redactor
from outboxd.telemetry.traces import Traces

__all__ = ["App", "Surface"]

_QUICK: Final = 6.0
_CANCEL: Final = 5.0
_OWN_STAGES: Final = timedelta(seconds=3)
"""What a run may still take for closing its clients, out of the drain's time."""


class Surface(Protocol):
    """What shows the daemon to the outside: the HTTP server."""

    async def open(self, control: Control) -> None:
        """Begin to serve. Raises OutboxdError when that is not possible; then the daemon does not start."""
        ...

    async def close(self) -> None:
        """End within seconds."""
        ...


class App:
    """One daemon in one event loop. With ``origin`` its configuration can change while it runs.

    ``redactor`` learns the secrets of each configuration, so that whoever writes logs can share it.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        registry: Registry,
        surfaces: Sequence[Surface] = (),
        origin: ConfigurationOrigin | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        self._configuration = configuration
        self._registry = registry
        self._surfaces = surfaces
        self._is_draining = False
        daemon = configuration.daemon
        self._instance = daemon.instance_id or daemon.name
        self._clock = SystemClock()
        self._random = SystemRandom()
        about = resource(daemon.name, self._instance)
        self._metrics = Metrics(about, otlp_endpoint=configuration.telemetry.metrics.otlp_endpoint)
        self._traces = Traces(
            about,
            otlp_endpoint=configuration.telemetry.traces.otlp_endpoint,
            sample_ratio=configuration.telemetry.traces.sample_ratio,
        )
        self.telemetry = Telemetry(get_logger(daemon=daemon.name), Instruments(self._metrics.meter))
        self._hooks = Hooks(registry, self.telemetry)
        self._redactor = redactor or Redactor()
        self._redactor.learn(secrets_of(configuration))
        self._claims = Claims()
        self._use = ConnectionUse()
        self._files = OsFiles()
        self._process = self._made_process()
        self._homes = Homes(configuration.connections, configuration.pipelines)
        self._reloader = Reloader(
            configuration, origin=origin, apply=self._change, clock=self._clock, telemetry=self.telemetry
        )
        self._supervisor: Supervisor | None = None
        self._retiring: asyncio.Task[None] | None = None
        self._stages = Stages(self.telemetry)
        self._signals = SignalWatch(self._signalled, on_hangup=self._reloader.look_now)

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> int:
        """Open, work until SIGTERM or SIGINT, drain; the exit code: 0 when everything in hand was finished, else 1."""
        self._signals.open()
        try:
            await self.open()
            try:
                await self._signals.drain_wanted.wait()
            finally:
                unclean = await self.close()
        finally:
            self._signals.close()
        return 1 if unclean else 0

    async def open(self) -> Control:
        """Open every stage; the pipelines start by themselves. When one cannot be opened, none stays open."""
        try:
            return await self._open()
        except BaseException:
            await self._stages.close()
            raise

    async def close(self) -> Sequence[str]:
        """Drain and close everything in reverse; the names of what did not end cleanly."""
        self._is_draining = True
        unclean = await self._stages.close()
        self.telemetry.emit(DaemonStopped(is_clean=not unclean, unclean=unclean))
        return unclean

    async def _open(self) -> Control:
        asyncio.get_running_loop().set_exception_handler(log_unhandled(get_logger()))
        self._stages.opened("metrics", partial(asyncio.to_thread, self._metrics.close), seconds=_QUICK)
        self._stages.opened("traces", partial(asyncio.to_thread, self._traces.close), seconds=_QUICK)
        watch = LoopWatch(self.telemetry)
        watch.open()
        self._stages.opened("loop watch", watch.close, seconds=_QUICK)
        self._stages.opened("files", _awaited(self._files.close), seconds=_QUICK)
        targets = await self._open_targets()
        await self._homes.open()
        self._stages.opened("letters", self._close_homes, seconds=2 * _QUICK)
        supervisor = self._supervisor = self._made_supervisor(targets)
        control = self._control(supervisor)
        for surface in self._surfaces:
            await surface.open(control)
            self._stages.opened("http", surface.close, seconds=_QUICK)
        supervisor.open()
        within = self._configuration.daemon.drain_timeout.total_seconds() + 2 * _CANCEL
        self._stages.opened("pipelines", partial(supervisor.close, within), seconds=within + _CANCEL)
        self._reloader.open()
        self._stages.opened("reload", self._reloader.close, seconds=_QUICK)
        self.telemetry.emit(
            DaemonStarted(
                name=control.name,
                version=control.version,
                instance=control.instance,
                pipelines=sorted(self._configuration.pipelines),
                targets=self._configuration.daemon.state or str(default_target_file(control.name)),
            )
        )
        return control

    def _signalled(self, name: str) -> None:
        self._is_draining = True
        self.telemetry.emit(DrainBegan(signal=name, seconds=self._configuration.daemon.drain_timeout.total_seconds()))

    # -- parts -------------------------------------------------------------------------------------------------------

    async def _open_targets(self) -> TargetStore:
        state = self._configuration.daemon.state
        if state is None:
            store = FileTargetStore(default_target_file(self._configuration.daemon.name))
            self._stages.opened("targets", _awaited(store.close), seconds=_QUICK)
            return store
        settings = self._configuration.connections.get(state)
        if not isinstance(settings, PostgresSettings):
            raise ConfigurationError(f"daemon.state names {state!r}, which is no Postgres connection")
        pool = connector(state, settings, pool_size=2)
        await pool.open()
        self._stages.opened("targets", pool.close, seconds=_QUICK)
        return PostgresTargetStore(pool)

    def _made_process(self) -> Process:
        daemon = self._configuration.daemon
        return Process(
            name=daemon.name,
            instance=self._instance,
            instance_id=daemon.instance_id,
            connections=self._configuration.connections,
            use=self._use,
            registry=self._registry,
            hooks=self._hooks,
            redactor=self._redactor,
            telemetry=self.telemetry,
            tracer=self._traces.tracer,
            plugin_meter=self._metrics.plugin_meter,
            clock=self._clock,
            random=self._random,
            files=self._files,
            drain_timeout=max(daemon.drain_timeout - _OWN_STAGES, daemon.drain_timeout / 2),
            is_draining=lambda: self._is_draining,
        )

    def _made_supervisor(self, targets: TargetStore) -> Supervisor:
        self._timing = Timing(drain=self._configuration.daemon.drain_timeout.total_seconds(), cancel=_CANCEL)
        return Supervisor(
            [self._actor(name, settings) for name, settings in self._configuration.pipelines.items()],
            targets=targets,
            is_shared=self._configuration.daemon.state is not None,
            clock=self._clock,
            telemetry=self.telemetry,
            on_gone=self._gone,
        )

    def _actor(self, name: str, settings: PipelineSettings) -> PipelineActor:
        self._metrics.remember(name)
        return PipelineActor(
            name=name,
            kind="relay" if isinstance(settings, RelaySettings) else "consumer",
            build=partial(_build, self._process, name, settings),
            clock=self._clock,
            telemetry=self.telemetry,
            timing=self._timing,
            observer=self._observed,
            redactor=self._redactor,
            claims=self._claims,
            wanted=self._wanted(name, settings),
        )

    def _wanted(self, name: str, settings: PipelineSettings) -> frozenset[str]:
        # Its name, too: a pipeline that was taken out and put in again starts when it has ended.
        return claims_of(settings, self._process.connections) | {f"pipeline {name}"}

    def _control(self, supervisor: Supervisor) -> Control:
        return Control(
            name=self._configuration.daemon.name,
            version=version("outboxd"),
            instance=self._instance,
            supervisor=supervisor,
            letters=self._homes.desk(),
            telemetry=self.telemetry,
            metrics_page=self._metrics.page if self._configuration.telemetry.metrics.prometheus else None,
            metrics_content_type=self._metrics.content_type,
            plugins=self._plugins,
            configuration=lambda: self._configuration.document,
            reloader=self._reloader,
            is_draining=lambda: self._is_draining,
        )

    # -- another configuration ---------------------------------------------------------------------------------------

    async def _change(self, after: Configuration) -> Changes:
        """Put this configuration in force: only what means something else than before is touched."""
        supervisor, before = self._supervisor, self._configuration
        assert supervisor is not None
        found = changes(before, after, used=self._use.names)
        self._redactor.learn(secrets_of(after))
        await self._homes.change(after.connections, after.pipelines, changed=found.connections)
        self._retiring = asyncio.create_task(self._retire(), name="old homes of letters")
        self._process = replace(self._process, connections=after.connections)
        found = replace(found, reconnected=sorted({*found.reconnected, *await self._not_adopted(after, found)}))
        # What the process was started with stays: it is what `needs_restart` is told against.
        self._configuration = replace(after, daemon=before.daemon, http=before.http, telemetry=before.telemetry)
        for name in (*found.removed, *found.replaced):
            supervisor.remove(name)
        for name, settings in after.pipelines.items():
            actor = supervisor.present(name)
            if actor is None:
                supervisor.add(self._actor(name, settings))
            else:
                actor.reconfigure(
                    partial(_build, self._process, name, settings),
                    self._wanted(name, settings),
                    restarts=name in found.changed,
                    frees=name in found.rewritten,
                )
        state = before.daemon.state
        if state in found.connections:
            found = replace(found, needs_restart=sorted({*found.needs_restart, "daemon.state"}))
        return found

    async def _not_adopted(self, after: Configuration, found: Changes) -> list[str]:
        """Pipelines whose run holds a connection that means something else now, although no setting names it."""
        if not found.connections:
            return []
        staying = sorted(set(after.pipelines) - {*found.added, *found.changed})
        return [
            name
            for name in staying
            for connections in self._use.of(name)
            if not await connections.adopt(after.connections, found.connections)
        ]

    async def _close_homes(self) -> None:
        if self._retiring is not None:
            self._retiring.cancel()
            await asyncio.wait({self._retiring})
        await self._homes.close()

    async def _retire(self) -> None:
        """Close what questions about letters no longer need, once those that were being asked are answered."""
        await self._clock.sleep(_QUICK)
        await self._homes.close_old()

    def _gone(self, pipeline: str, is_clean: bool) -> None:
        self._metrics.forget(pipeline)
        self.telemetry.emit(PipelineRemoved(pipeline=pipeline, is_clean=is_clean))

    def _plugins(self) -> Sequence[PluginInfo]:
        return [
            PluginInfo(kind=each.kind, name=each.name, distribution=each.distribution, version=each.version)
            for each in self._registry.plugins()
        ]

    def _observed(self, pipeline: str, before: PipelineState, after: PipelineState) -> None:
        self._hooks.notify("outboxd_pipeline_state_changed", pipeline=pipeline, before=before, after=after)


async def _build(process: Process, name: str, settings: PipelineSettings) -> PipelineRun:
    match settings:
        case RelaySettings():
            return await build_relay(process, name, settings)
        case ConsumerSettings():
            return await build_consumer(process, name, settings)


def _awaited(close: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def closing() -> None:
        close()

    return closing

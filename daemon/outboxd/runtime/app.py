"""The composition root: the one place that knows everything. It opens in order and closes in reverse."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from importlib.metadata import version
from typing import Final, Protocol

from outboxd.config import Configuration, PipelineSettings
from outboxd.errors import ConfigurationError
from outboxd.lifecycle import PipelineState
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.pipeline.run import PipelineRun
from outboxd.ports import TargetStore
from outboxd.postgres.settings import PostgresSettings
from outboxd.postgres.target_store import PostgresTargetStore
from outboxd.registry import Hooks, Registry
from outboxd.runtime.actor import PipelineActor, Timing
from outboxd.runtime.clock import SystemClock
from outboxd.runtime.connections import connector
from outboxd.runtime.consumers import build_consumer
from outboxd.runtime.control import Control, PluginInfo
from outboxd.runtime.files import OsFiles
from outboxd.runtime.health import LoopWatch
from outboxd.runtime.homes import Homes
from outboxd.runtime.loop import log_unhandled
from outboxd.runtime.process import Process
from outboxd.runtime.random import SystemRandom
from outboxd.runtime.relays import build_relay
from outboxd.runtime.secrets import secrets_of
from outboxd.runtime.signals import SignalWatch
from outboxd.runtime.stages import Stages
from outboxd.runtime.supervisor import Supervisor
from outboxd.runtime.targets import FileTargetStore, default_target_file
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
    """One daemon in one event loop."""

    def __init__(self, configuration: Configuration, *, registry: Registry, surfaces: Sequence[Surface] = ()) -> None:
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
        self._redactor = Redactor(secrets_of(configuration))
        self._stages = Stages(self.telemetry)
        self._signals = SignalWatch(self._signalled)

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
        files = OsFiles()
        self._stages.opened("files", _awaited(files.close), seconds=_QUICK)
        targets = await self._open_targets()
        homes = Homes(self._configuration.connections, self._configuration.pipelines)
        await homes.open()
        self._stages.opened("letters", homes.close, seconds=_QUICK)
        supervisor = self._supervisor(targets, self._process(files))
        control = self._control(supervisor, homes)
        for surface in self._surfaces:
            await surface.open(control)
            self._stages.opened("http", surface.close, seconds=_QUICK)
        supervisor.open()
        within = self._configuration.daemon.drain_timeout.total_seconds() + 2 * _CANCEL
        self._stages.opened("pipelines", partial(supervisor.close, within), seconds=within + _CANCEL)
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

    def _process(self, files: OsFiles) -> Process:
        daemon = self._configuration.daemon
        return Process(
            name=daemon.name,
            instance=self._instance,
            instance_id=daemon.instance_id,
            connections=self._configuration.connections,
            registry=self._registry,
            hooks=self._hooks,
            redactor=self._redactor,
            telemetry=self.telemetry,
            tracer=self._traces.tracer,
            plugin_meter=self._metrics.plugin_meter,
            clock=self._clock,
            random=self._random,
            files=files,
            drain_timeout=max(daemon.drain_timeout - _OWN_STAGES, daemon.drain_timeout / 2),
            is_draining=lambda: self._is_draining,
        )

    def _supervisor(self, targets: TargetStore, process: Process) -> Supervisor:
        timing = Timing(drain=self._configuration.daemon.drain_timeout.total_seconds(), cancel=_CANCEL)
        actors = [
            PipelineActor(
                name=name,
                kind="relay" if isinstance(settings, RelaySettings) else "consumer",
                build=partial(_build, process, name, settings),
                clock=self._clock,
                telemetry=self.telemetry,
                timing=timing,
                observer=self._observed,
                redactor=self._redactor,
            )
            for name, settings in self._configuration.pipelines.items()
        ]
        return Supervisor(
            actors,
            targets=targets,
            is_shared=self._configuration.daemon.state is not None,
            clock=self._clock,
            telemetry=self.telemetry,
        )

    def _control(self, supervisor: Supervisor, homes: Homes) -> Control:
        return Control(
            name=self._configuration.daemon.name,
            version=version("outboxd"),
            instance=self._instance,
            supervisor=supervisor,
            letters=homes.desk(),
            telemetry=self.telemetry,
            metrics_page=self._metrics.page if self._configuration.telemetry.metrics.prometheus else None,
            metrics_content_type=self._metrics.content_type,
            plugins=self._plugins,
            configuration=lambda: self._configuration.document,
            is_draining=lambda: self._is_draining,
        )

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

"""What the pipelines of one process share: who it is, its telemetry, its plugins, its clocks and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from opentelemetry.metrics import Meter
from opentelemetry.trace import Tracer

from outboxd.ports import Clock, Files, Random
from outboxd.registry import Hooks, Registry
from outboxd.runtime.connections import ConnectionSettings, ConnectionUse
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.redaction import Redactor

__all__ = ["Process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """Made once by the composition root. ``instance`` is the replica's stable name, ``owner`` a new one for each start."""

    name: str
    instance: str
    instance_id: str | None
    connections: ConnectionSettings
    use: ConnectionUse
    registry: Registry
    hooks: Hooks
    redactor: Redactor
    telemetry: Telemetry
    tracer: Tracer | None
    plugin_meter: Callable[[str], Meter]
    clock: Clock
    random: Random
    files: Files
    drain_timeout: timedelta
    is_draining: Callable[[], bool]

    def owner(self) -> str:
        """A name that no earlier start has had: an orphan of a crashed one must not look alive."""
        return f"{self.instance}-{self.random.token()}"

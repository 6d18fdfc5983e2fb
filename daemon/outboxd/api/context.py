"""What a plugin is handed: once when it is made, and with each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from outboxd.api.connections import Connections, PostgresConnection
from outboxd.ports import Clock, Executor, Files

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.metrics import Meter

__all__ = ["ActionContext", "HandlerContext", "Logger", "PluginContext"]


class Logger(Protocol):
    """A structured logger: an event name in the past tense and its fields. Never put a secret into a field."""

    def debug(self, event: str, **fields: object) -> object:
        """For whoever debugs the plugin."""
        ...

    def info(self, event: str, **fields: object) -> object:
        """Something an operator may want to know."""
        ...

    def warning(self, event: str, **fields: object) -> object:
        """Something an operator should look at."""
        ...

    def error(self, event: str, **fields: object) -> object:
        """Something an operator must act on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginContext:
    """Handed to the constructor of every plugin type.

    ``name`` is the name under which the YAML uses it (a sink's name is unique within its chain), ``instance`` this
    replica's stable name (`daemon.instance_id`, else `daemon.name`), ``is_stopping()`` turns true when the daemon drains.
    ``group`` is a consumer's group; ``topics`` are those that the pipeline consumes, or a relay's where they are listed:
    a sink needs both to find again what an earlier start has written.
    """

    name: str
    pipeline: str
    instance: str
    logger: Logger
    meter: Meter
    clock: Clock
    connections: Connections
    executor: Executor
    files: Files
    is_stopping: Callable[[], bool]
    group: str | None = None
    topics: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerContext:
    """Handed to each call of a handler.

    ``deadline`` is what the call may take; ``connection`` is the open transaction when the pipeline asks for one.
    """

    pipeline: str
    logger: Logger
    connections: Connections
    is_stopping: Callable[[], bool]
    deadline: timedelta
    connection: PostgresConnection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionContext:
    """Handed to each call of an action."""

    pipeline: str
    logger: Logger
    connections: Connections
    is_stopping: Callable[[], bool]
    deadline: timedelta

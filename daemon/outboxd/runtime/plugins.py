"""Makes plugin objects: what the configuration names, with the context that it is handed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from outboxd.api import Connections, PluginContext
from outboxd.api.references import PluginReference
from outboxd.errors import OutboxdError, PluginBroken
from outboxd.ports import Executor
from outboxd.runtime.process import Process
from outboxd.telemetry.logs import get_logger

__all__ = ["PluginFactory"]


class PluginFactory:
    """Makes the plugins of one start of one pipeline."""

    def __init__(
        self,
        process: Process,
        *,
        pipeline: str,
        connections: Connections,
        executor: Executor,
        is_stopping: Callable[[], bool],
        group: str | None = None,
        topics: Sequence[str] = (),
    ) -> None:
        self._process = process
        self._pipeline = pipeline
        self._connections = connections
        self._executor = executor
        self._is_stopping = is_stopping
        self._group = group
        self._topics = tuple(topics)

    def make(self, reference: PluginReference, *, name: str | None = None) -> Any:
        """The plugin; ``name`` is what the YAML calls it, where that is not its type. Raises PluginError."""
        name = name or reference.type
        plugin = self._process.registry.get(reference.kind, reference.type)
        try:
            return plugin.implementation(reference.settings, self.context(name))
        except OutboxdError:
            raise
        except Exception as error:
            raise PluginBroken(
                f"{reference.kind} {reference.type!r} of {plugin.distribution} {plugin.version} cannot be made: "
                f"{type(error).__name__}: {error}"
            ) from error

    def context(self, name: str) -> PluginContext:
        """The context of the plugin with this name."""
        process = self._process
        return PluginContext(
            name=name,
            pipeline=self._pipeline,
            instance=process.instance,
            logger=get_logger(pipeline=self._pipeline, plugin=name),
            meter=process.plugin_meter(name),
            clock=process.clock,
            connections=self._connections,
            executor=self._executor,
            files=process.files,
            is_stopping=self._is_stopping,
            group=self._group,
            topics=self._topics,
        )

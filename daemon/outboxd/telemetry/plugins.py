"""What happens to plugins' hooks: an observer that raised is a log line and a count, never felt by the data path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from outboxd.api.context import Logger

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from outboxd.telemetry.metrics import Instruments

__all__ = ["HookFailed", "PluginInstruments"]


class PluginInstruments:
    """Metrics of plugins."""

    __slots__ = ("hook_failures",)

    def __init__(self, meter: Meter) -> None:
        self.hook_failures = meter.create_counter(
            "outboxd_plugin_hook_failures", description="Calls of a plugin's hook that raised"
        )
        self.hook_failures.add(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailed:
    """A plugin's hook raised; what it was told of had already happened."""

    hook: str
    plugin: str
    error: Exception

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """A warning with the plugin's name, and a count."""
        kind = type(self.error).__name__
        logger.warning("hook_failed", hook=self.hook, plugin=self.plugin, error=f"{kind}: {self.error}")
        instruments.plugins.hook_failures.add(1, {"plugin": self.plugin})

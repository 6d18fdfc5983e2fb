"""What happens to the configuration of a running daemon: the instruments, and one event class per happening."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from outboxd.api.context import Logger
    from outboxd.telemetry.metrics import Instruments

__all__ = [
    "ConfigurationApplied",
    "ConfigurationInstruments",
    "ConfigurationRefused",
    "ConfigurationUnsettled",
    "PipelineRemoved",
    "ReloadIsOff",
    "RestartNeeded",
]


class ConfigurationInstruments:
    """Metrics of reloads, in the names that Prometheus gives its own."""

    __slots__ = ("is_successful", "succeeded_at")

    def __init__(self, meter: Meter) -> None:
        self.is_successful = meter.create_gauge(
            "outboxd_config_last_reload_successful",
            description="1 when the configuration was good the last time it was read, else 0 and the one before is in force",
        )
        self.succeeded_at = meter.create_gauge(
            "outboxd_config_last_reload_success_timestamp_seconds",
            unit="s",
            description="when the configuration was last read and good, in seconds since the epoch",
        )
        self.good()

    def good(self) -> None:
        """The configuration was read and is in force; the start counts, too."""
        self.is_successful.set(1)
        self.succeeded_at.set(time.time())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationApplied:
    """A changed configuration is in force; ``changed`` pipelines restart, ``removed`` ones drain."""

    added: Sequence[str]
    changed: Sequence[str]
    removed: Sequence[str]
    is_first_good: bool
    """Whether the one before was refused."""

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """What has changed; nothing to say of files that were written again and mean the same."""
        instruments.configuration.good()
        if self.added or self.changed or self.removed or self.is_first_good:
            logger.info(
                "configuration_applied",
                added=list(self.added),
                changed=list(self.changed),
                removed=list(self.removed),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationRefused:
    """The changed configuration is not valid: everything goes on as it was. ``is_new``: not the fault told last."""

    problems: Sequence[str]
    """Each with its `file:line:column`, code and remedy; never a secret."""
    is_new: bool

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Once per fault: somebody must correct the files."""
        instruments.configuration.is_successful.set(0)
        if self.is_new:
            logger.error("configuration_refused", count=len(self.problems), problems=list(self.problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationUnsettled:
    """The files have been changing for ``seconds`` without a second of quiet: they are not read yet."""

    seconds: float

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """Once per change: somebody may be writing them in a loop."""
        logger.warning("configuration_unsettled", seconds=round(self.seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartNeeded:
    """Settings of the process itself were changed; they count from its next start on."""

    keys: Sequence[str]

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """Once per set of keys."""
        logger.warning("configuration_needs_restart", keys=list(self.keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRemoved:
    """A pipeline that is no longer configured has drained and is gone."""

    pipeline: str
    is_clean: bool

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """A warning when something was left in the middle: nobody here goes on with it."""
        if self.is_clean:
            logger.info("pipeline_removed", pipeline=self.pipeline)
        else:
            logger.warning("pipeline_removed", pipeline=self.pipeline, clean=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadIsOff:
    """Somebody sent SIGHUP, and the configuration is not read again while the daemon runs."""

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """What to do instead."""
        logger.warning("reload_is_off", hint="restart the daemon, or set daemon.reload to watch")

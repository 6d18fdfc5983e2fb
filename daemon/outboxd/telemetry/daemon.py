"""What happens to the daemon as a whole: its start, its drain, its end. Log lines only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outboxd.api.context import Logger
    from outboxd.telemetry.metrics import Instruments

__all__ = ["DaemonStarted", "DaemonStopped", "DrainBegan", "HttpOpened", "StageNotClosed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStarted:
    """Every stage is open and the pipelines are starting."""

    name: str
    version: str
    instance: str
    pipelines: Sequence[str]
    targets: str

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """The first line that an operator looks for."""
        logger.info(
            "daemon_started",
            name=self.name,
            version=self.version,
            instance=self.instance,
            pipelines=list(self.pipelines),
            targets=self.targets,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOpened:
    """The REST API, the probes and the metrics answer; or, for section `http.management`, the latter two."""

    url: str
    section: str

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """What to give to `--url`."""
        logger.info("http_opened", url=self.url, section=self.section)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBegan:
    """Somebody asked the daemon to end."""

    signal: str
    seconds: float

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """What happens next, and how to shorten it."""
        logger.info(
            "drain_began", signal=self.signal, at_most_seconds=self.seconds, hint="a second signal ends at once"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageNotClosed:
    """A stage of the daemon did not close in time, or failed to."""

    stage: str
    reason: str

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """The exit will be unclean."""
        logger.error("stage_not_closed", stage=self.stage, reason=self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonStopped:
    """The daemon has ended."""

    is_clean: bool
    unclean: Sequence[str]

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """A warning when something was left in the middle: it is done again at the next start."""
        if self.is_clean:
            logger.info("daemon_stopped", clean=True)
        else:
            logger.warning("daemon_stopped", clean=False, not_finished=list(self.unclean))

"""What happens to pipelines as wholes, and to the process: the instruments, and one event class per happening."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from outboxd.lifecycle import PipelineState

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from outboxd.api.context import Logger
    from outboxd.telemetry.metrics import Instruments

__all__ = [
    "EventLoopBlocked",
    "EventLoopMeasured",
    "PipelineFailed",
    "PipelineInstruments",
    "PipelineRestarted",
    "PipelineStateChanged",
    "TargetsUnread",
]


class PipelineInstruments:
    """The metric instruments of pipelines as wholes and of the process."""

    def __init__(self, meter: Meter) -> None:
        self.state = meter.create_gauge(
            "outboxd_pipeline_state", description="1 for the state that the pipeline is in, 0 for the others"
        )
        self.restarts = meter.create_counter(
            "outboxd_pipeline_restarts", description="Starts of the pipeline after the first one"
        )
        self.failures = meter.create_counter(
            "outboxd_pipeline_failures", description="Ends of the pipeline by an error, by the error's code"
        )
        self.loop_lag = meter.create_gauge(
            "outboxd_event_loop_lag", unit="s", description="How late the event loop was, worst of the last seconds"
        )
        self.loop_blocked = meter.create_counter(
            "outboxd_event_loop_blocked", description="Times that something held the event loop for too long"
        )
        meter.create_gauge("outboxd_build_info", description="1, with the version as a label").set(
            1, {"version": version("outboxd"), "python": platform.python_version()}
        )
        self.loop_lag.set(0.0)
        self.loop_blocked.add(0)

    def register(self, pipeline: str, kind: str) -> None:
        """Make the series of a pipeline before anything happens to it."""
        self.restarts.add(0, {"pipeline": pipeline})
        self.set_state(pipeline, kind, PipelineState.CREATED)

    def set_state(self, pipeline: str, kind: str, state: PipelineState) -> None:
        """Show this state and no other."""
        for each in PipelineState:
            self.state.set(int(each is state), {"pipeline": pipeline, "kind": kind, "state": each.value})


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStateChanged:
    """A pipeline of this replica moved from one state to the next."""

    pipeline: str
    kind: str
    before: PipelineState
    after: PipelineState
    reason: str | None = None
    message: str | None = None

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """A warning for states that somebody should look at."""
        instruments.pipelines.set_state(self.pipeline, self.kind, self.after)
        is_bad = self.after in {PipelineState.STALLED, PipelineState.FAILED}
        fields = {"reason": self.reason, "message": self.message} if is_bad else {}
        (logger.warning if is_bad else logger.info)(
            "pipeline_state_changed",
            pipeline=self.pipeline,
            before=self.before.value,
            after=self.after.value,
            **fields,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineFailed:
    """A run of a pipeline ended by an error; ``next_start`` in seconds, None when a person must act."""

    pipeline: str
    code: str
    error: BaseException
    next_start: float | None

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """The traceback, once."""
        instruments.pipelines.failures.add(1, {"pipeline": self.pipeline, "code": self.code})
        logger.error(
            "pipeline_failed",
            pipeline=self.pipeline,
            code=self.code,
            suggestion=getattr(self.error, "suggestion", None),
            next_start_seconds=self.next_start,
            exc_info=(type(self.error), self.error, self.error.__traceback__),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRestarted:
    """A pipeline is started once more, after a failure or on request."""

    pipeline: str
    restarts: int

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Normal work of the supervisor."""
        instruments.pipelines.restarts.add(1, {"pipeline": self.pipeline})
        logger.info("pipeline_restarted", pipeline=self.pipeline, restarts=self.restarts)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsUnread:
    """The target states cannot be read now; pipelines stay as they are."""

    message: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Somebody should look at the database of `daemon.state`."""
        del instruments
        logger.warning("targets_unread", message=self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoopMeasured:
    """How late the loop was, in seconds, at its worst since the last measurement."""

    lag: float

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Metric only."""
        del logger
        instruments.pipelines.loop_lag.set(self.lag)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLoopBlocked:
    """Something held the event loop for ``seconds``; ``stack`` is where it stood, as far as it was seen."""

    seconds: float
    task: str | None
    stack: str | None

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Names the culprit: heartbeats and every pipeline of the process wait for it."""
        instruments.pipelines.loop_blocked.add(1)
        logger.warning("event_loop_blocked", seconds=round(self.seconds, 3), task=self.task, stack=self.stack)

"""One run of a pipeline, seen from outside: how long it gets for what, how it ended, and how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass

from outboxd.errors import OutboxdError
from outboxd.pipeline.run import Health, PipelineRun, Stall

__all__ = ["RunEndedEarly", "RunNotBuilt", "RunWillNotEnd", "Timing", "built", "ended", "health_of"]


class RunEndedEarly(OutboxdError):
    """A run returned although nobody asked it to."""

    code = "run_ended_early"


class RunNotBuilt(OutboxdError):
    """Making a run of the configuration took too long."""

    code = "run_not_built"


class RunWillNotEnd(OutboxdError):
    """A run that was cancelled did not end; the pipeline cannot be started beside it."""

    code = "run_will_not_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How long an actor waits for what, in seconds."""

    drain: float = 25.0
    """For a run that was asked to stop; then it is cancelled."""
    cancel: float = 5.0
    """For a run that was cancelled; then it is left alone, and said so."""
    build: float = 30.0
    """For making a run of the configuration."""
    health: float = 1.0
    """Between two looks at a run."""
    slow_start: float = 10.0
    """After which a run that is not ready counts as stalled: an outage shows within 15 s."""


async def built(building: Awaitable[PipelineRun]) -> PipelineRun | BaseException:
    """The run, or the error for which it could not be made."""
    try:
        return await building
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001  # a plugin's SystemExit ends its pipeline, never the daemon
        return error


async def ended(run: PipelineRun) -> BaseException | None:
    """The run's error as a value: a task that raises SystemExit would end the event loop with it."""
    try:
        await run.run()
    except BaseException as error:  # noqa: BLE001  # see above; our own cancellation is reported like any end
        return error
    return None


def health_of(run: PipelineRun) -> Health:
    """How the run is, as far as it can tell."""
    try:
        return run.health()
    except Exception as error:  # noqa: BLE001  # a status that cannot be known is not RUNNING
        stall = Stall(reason="health_failed", message=f"{type(error).__name__}: {error}")
        return Health(is_ready=False, stall=stall)

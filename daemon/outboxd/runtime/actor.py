"""One pipeline's actor: brings what is to what is wanted, one run after another, and feels no other pipeline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import Final

from outboxd.errors import PipelineStopped, StateConflict
from outboxd.lifecycle import Lifecycle, PipelineState, TargetState
from outboxd.pipeline.run import Health, PipelineRun, Stall
from outboxd.ports import Clock, Target
from outboxd.runtime.backoff import STABLE_AFTER, restart_delay
from outboxd.runtime.claims import Claims
from outboxd.runtime.runs import RunEndedEarly, RunNotBuilt, RunWillNotEnd, Timing, built, ended, health_of
from outboxd.runtime.status import PipelineStatus, Reason, deciding, reason_of
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.pipelines import PipelineFailed, PipelineRestarted, PipelineStateChanged
from outboxd.telemetry.redaction import Redactor

__all__ = ["Build", "Observer", "PipelineActor", "Timing"]

Observer = Callable[[str, PipelineState, PipelineState], None]
"""Told of each move: pipeline, before, after. Must not raise."""

Build = Callable[[], Awaitable[PipelineRun]]
"""Makes a new run for one start; may fail."""

_S = PipelineState
_STOPPING: Final = Reason(code="daemon_stopping", message="the daemon is stopping")
_CHANGED: Final = Reason(code="configuration_changed", message="its configuration was changed")
_SETTLED: Final = {TargetState.PAUSED: _S.PAUSED, TargetState.STOPPED: _S.STOPPED}


class PipelineActor:
    """Owns one pipeline: its lifecycle, its present run, its restarts.

    ``build`` makes a new run for each start and may fail; whatever a run raises, `SystemExit` and `KeyboardInterrupt`
    included, ends that run only. It starts once nobody else has any of its ``wanted`` claims.
    """

    def __init__(
        self,
        *,
        name: str,
        kind: str,
        build: Build,
        clock: Clock,
        telemetry: Telemetry,
        timing: Timing,
        observer: Observer | None = None,
        redactor: Redactor | None = None,
        claims: Claims | None = None,
        wanted: frozenset[str] = frozenset(),
    ) -> None:
        self.name = name
        self.kind = kind
        self.is_unclean = False
        """Whether a run had to be cancelled or failed while the daemon was closing."""
        self._build = build
        self._claims = claims or Claims()
        self._wanted_claims = wanted
        self._clock = clock
        self._telemetry = telemetry
        self._timing = timing
        self._observer = observer
        self._redactor = redactor or Redactor()
        self._lifecycle = Lifecycle(self._moved)
        self._since = clock.now()
        self._target: Target | None = None
        self._reason: Reason | None = Reason(code="target_unknown", message="the target states have not been read yet")
        self._detail: dict[str, object] = {}
        self._wake = asyncio.Event()
        self._is_closing = False
        self._last_word = _STOPPING
        self._restart_wanted = False
        self._why_restart: Reason | None = None
        self._is_held = False
        self._next_start: datetime | None = None
        self._starts = 0
        self._failures = 0
        self._leftover: asyncio.Task[BaseException | None] | None = None
        telemetry.instruments.pipelines.register(name, kind)

    # -- asked from outside ------------------------------------------------------------------------------------------

    @property
    def state(self) -> PipelineState:
        """What it is doing now."""
        return self._lifecycle.state

    @property
    def target(self) -> Target | None:
        """What is wanted; None until the target states have been read."""
        return self._target

    def set_target(self, target: Target) -> None:
        """Want this from now on. A person's word also ends the waiting of a pipeline that failed for good."""
        self._target = target
        self._is_held = False
        self._wake.set()

    def target_unread(self, message: str) -> None:
        """Say why nobody knows yet what is wanted; nothing starts until that is known."""
        if self._target is None:
            self._reason = Reason(code="target_unknown", message=message)

    def restart(self) -> None:
        """Drain, then start anew; or start at once when it waits for its restart. Raises StateConflict."""
        if self._wanted is not TargetState.STARTED:
            raise StateConflict(
                f"pipeline {self.name!r} is {self._wanted.value}, so there is nothing to restart",
                suggestion=f"resume it: outboxd resume {self.name}",
            )
        self._restart_wanted = True
        self._wake.set()

    def reconfigure(self, build: Build, wanted: frozenset[str], *, restarts: bool, frees: bool = False) -> None:
        """Make runs with ``build`` from now on.

        ``restarts``: what runs is drained and started anew, what waits for its next start starts at once. A pipeline
        that waits for a person starts only when this ``frees`` it: somebody has changed its own settings.
        """
        self._build, self._wanted_claims = build, wanted
        if not restarts or self._wanted is not TargetState.STARTED or (self._is_held and not frees):
            return
        self._failures = 0
        self._restart_wanted = True
        self._why_restart = _CHANGED
        self._wake.set()

    def close(self, why: Reason = _STOPPING) -> None:
        """Drain and end for good; the target stays as it is."""
        self._is_closing = True
        self._last_word = why
        self._wake.set()

    def status(self) -> PipelineStatus:
        """How it is, at this moment."""
        detail = dict(self._detail)
        if self._next_start is not None:
            detail["next_start_at"] = self._next_start.isoformat()
        if self._is_held:
            detail["waits_for"] = "a person"
        return PipelineStatus(
            name=self.name,
            kind=self.kind,
            target=self._wanted,
            state=self.state,
            reason=None if self._reason is None else self._reason.code,
            message=None if self._reason is None else self._redactor.text(self._reason.message),
            since=self._since,
            restarts=max(0, self._starts - 1),
            # Errors of the user's own code are told here too, and they may say anything (invariant 11).
            detail={key: self._redactor.value(value) for key, value in detail.items()},
        )

    # -- its life ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow the target until `close`; then drained, unless `is_unclean`."""
        while not self._is_closing:
            if self._target is None:
                await self._woken()
            elif self._wanted is not TargetState.STARTED:
                self._settle(_SETTLED[self._wanted])
                await self._woken()
            elif (self._is_held and not self._restart_wanted) or self._must_wait_for_claims():
                await self._woken()
            else:
                await self._one_run()
        if self.state not in {_S.STOPPED, _S.FAILED}:
            self._move(_S.STOPPED, self._last_word)
        self._release_claims()

    async def _one_run(self) -> None:
        self._restart_wanted = False
        self._why_restart = None
        self._is_held = False
        if self.state is _S.FAILED:
            self._move(_S.RESTARTING, self._reason)
        self._starts += 1
        if self._starts > 1:
            self._telemetry.emit(PipelineRestarted(pipeline=self.name, restarts=self._starts - 1))
        self._move(_S.STARTING, None)
        began = self._clock.monotonic()
        try:
            error = self._leftover_error() or await self._built_and_run()
        finally:
            self._release_claims()
        if self._clock.monotonic() - began >= STABLE_AFTER:
            self._failures = 0
        if error is not None:
            await self._failed(error)
        elif self.state is _S.DRAINING:
            after = self._after_drain()
            self._move(after, self._operator() if after in _SETTLED.values() else self._why_restart)

    async def _built_and_run(self) -> BaseException | None:
        """The error that ended the run; None when it was asked to end."""
        building = asyncio.create_task(built(self._build()), name=f"build {self.name}")
        done, _ = await asyncio.wait({building}, timeout=self._timing.build)
        if not done:
            building.cancel()
            await asyncio.wait({building}, timeout=self._timing.cancel)
            return RunNotBuilt(f"the pipeline could not be made within {self._timing.build:.0f} s")
        run = building.result()
        if isinstance(run, BaseException):
            return run
        working = asyncio.create_task(ended(run), name=f"pipeline {self.name}")
        try:
            await self._watch(run, working)
            if working.done():
                return working.result() or RunEndedEarly("the pipeline's run ended although nobody asked it to")
            return await self._drain(run, working)
        except asyncio.CancelledError:
            working.cancel()
            await asyncio.wait({working}, timeout=self._timing.cancel)
            raise

    async def _watch(self, run: PipelineRun, working: asyncio.Task[BaseException | None]) -> None:
        """Return when the run has ended or must end; meanwhile show how it is (invariant 12)."""
        began = self._clock.monotonic()
        while not (working.done() or self._must_end):
            self._show(health_of(run), self._clock.monotonic() - began)
            self._wake.clear()
            if not self._must_end:
                await self._woken_or_done(working, self._timing.health)

    async def _drain(self, run: PipelineRun, working: asyncio.Task[BaseException | None]) -> BaseException | None:
        self._move(_S.DRAINING, self._last_word if self._is_closing else self._why_restart)
        try:
            run.stop()
        except Exception as failed:  # noqa: BLE001  # the run's own fault: it is cancelled instead
            self._telemetry.emit(PipelineFailed(pipeline=self.name, code="stop_failed", error=failed, next_start=None))
            working.cancel()
        done, _ = await asyncio.wait({working}, timeout=self._timing.drain)
        if not done:
            self.is_unclean = self.is_unclean or self._is_closing
            working.cancel()
            done, _ = await asyncio.wait({working}, timeout=self._timing.cancel)
        if not done:
            self._leftover = working
            self.is_unclean = self.is_unclean or self._is_closing
            return RunWillNotEnd(
                f"the run did not end within {self._timing.drain + self._timing.cancel:.0f} s of being asked to",
                suggestion="look for a handler or plugin that ignores cancellation; restart the daemon",
            )
        error = working.result()
        if error is None or isinstance(error, asyncio.CancelledError):
            return None
        self.is_unclean = self.is_unclean or self._is_closing
        return error

    async def _failed(self, error: BaseException) -> None:
        """FAILED; then wait for the next start, for a person, or not at all when closing."""
        self._failures += 1
        self._is_held = isinstance(deciding(error), PipelineStopped)
        delay = None if self._is_held or self._is_closing else restart_delay(self._failures)
        reason = reason_of(error)
        self._move(_S.FAILED, reason)
        self._telemetry.emit(PipelineFailed(pipeline=self.name, code=reason.code, error=error, next_start=delay))
        if delay is None or self._wanted is not TargetState.STARTED:
            return
        self._next_start = datetime.fromtimestamp(self._clock.now().timestamp() + delay, self._clock.now().tzinfo)
        deadline = self._clock.monotonic() + delay
        try:
            while not self._must_end and (left := deadline - self._clock.monotonic()) > 0:
                self._wake.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await self._wake.wait()
        finally:
            self._next_start = None

    def _leftover_error(self) -> RunWillNotEnd | None:
        """Two runs of one pipeline in one process never stand beside each other."""
        if self._leftover is None or self._leftover.done():
            self._leftover = None
            return None
        return RunWillNotEnd("an earlier run has not ended yet", suggestion="restart the daemon")

    def _must_wait_for_claims(self) -> bool:
        """Whether another pipeline, one that drains, still has what a run of this one needs."""
        holder = self._claims.take(self, self.name, self._wanted_claims, self._wake.set)
        if holder is not None:
            self._reason = Reason(code="waits_for_pipeline", message=f"pipeline {holder!r} has not ended yet")
        return holder is not None

    def _release_claims(self) -> None:
        if self._leftover is None or self._leftover.done():
            self._claims.release(self)
        else:  # what it works on is not free while it works
            self._leftover.add_done_callback(lambda _: self._claims.release(self))

    # -- small moves -------------------------------------------------------------------------------------------------

    @property
    def _wanted(self) -> TargetState:
        return TargetState.STARTED if self._target is None else self._target.state

    @property
    def _must_end(self) -> bool:
        return self._is_closing or self._restart_wanted or self._wanted is not TargetState.STARTED

    def _after_drain(self) -> PipelineState:
        if self._is_closing:
            return _S.STOPPED
        return _SETTLED.get(self._wanted, _S.RESTARTING)

    def _settle(self, state: PipelineState) -> None:
        """Stay in ``state``, with the name of whoever wants it so."""
        self._restart_wanted = False
        self._why_restart = None
        if self.state is not state:
            self._move(state, self._operator())

    def _operator(self) -> Reason | None:
        if self._is_closing or self._target is None:
            return None
        why = "" if self._target.reason is None else f": {self._target.reason}"
        return Reason(code="operator", message=f"{self._target.state} by {self._target.actor}{why}")

    def _show(self, health: Health, elapsed: float) -> None:
        self._detail = dict(health.detail)
        stall = health.stall
        if stall is None and not health.is_ready and elapsed >= self._timing.slow_start:
            stall = Stall(reason="start_slow", message=f"still starting after {elapsed:.0f} s")
        match (self.state, stall):
            case (_S.STALLED, None) if health.is_ready:
                self._move(_S.RUNNING, None)
            case (_S.STARTING, None) if health.is_ready:
                self._move(_S.RUNNING, None)
            case (_S.STARTING | _S.RUNNING, Stall(reason=code, message=message)):
                self._move(_S.STALLED, Reason(code=code, message=message))
            case (_S.STALLED, Stall(reason=code, message=message)):
                self._reason = Reason(code=code, message=message)
            case _:
                pass

    def _move(self, to: PipelineState, reason: Reason | None) -> None:
        self._reason = reason
        self._lifecycle.move(self.state, to)

    def _moved(self, before: PipelineState, after: PipelineState) -> None:
        self._since = self._clock.now()
        if after not in {_S.RUNNING, _S.STALLED, _S.DRAINING}:
            self._detail = {}
        self._telemetry.emit(
            PipelineStateChanged(
                pipeline=self.name,
                kind=self.kind,
                before=before,
                after=after,
                reason=None if self._reason is None else self._reason.code,
                message=None if self._reason is None else self._reason.message,
            )
        )
        if self._observer is not None:
            self._observer(self.name, before, after)

    async def _woken(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    async def _woken_or_done(self, working: asyncio.Task[BaseException | None], seconds: float) -> None:
        waking = asyncio.create_task(self._wake.wait(), name=f"wake {self.name}")
        try:
            await asyncio.wait({waking, working}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waking.cancel()

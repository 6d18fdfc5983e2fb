"""What follows from each call: the record is done, waits for its next try, goes down the chain, or ends the pipeline.

The only place where records stop holding back their offset (invariant 4) and where attempts are charged (invariant 5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from outboxd.errors import AssignmentLost, PipelineStopped, RecordError
from outboxd.pipeline.consumer.attempt import (
    DeadLettered,
    Outage,
    Retrying,
    RetryPolicy,
    Skipped,
    Stopped,
    judge,
    returned,
)
from outboxd.pipeline.consumer.breaker import Breaker
from outboxd.pipeline.consumer.lanes import Lanes
from outboxd.pipeline.consumer.partition import AssignedPartition, Failing, InHand
from outboxd.pipeline.consumer.timers import Timers
from outboxd.pipeline.letters.classification import Decision
from outboxd.pipeline.letters.making import FailureFacts
from outboxd.pipeline.letters.replay import ReplayPostponed
from outboxd.ports import Clock, Random
from outboxd.records import Failure, Stage, Verdict
from outboxd.telemetry.consumer import OutageBegan, OutageEnded, RecordCounts, RecordSkipped
from outboxd.telemetry.emitter import Telemetry

__all__ = ["DeadLetters", "Decides", "Settlement"]


class Decides(Protocol):
    """`outboxd.pipeline.letters.classification.Classification`."""

    def decide(self, failure: Failure) -> Decision:
        """The verdict on a failure."""
        ...


class DeadLetters(Protocol):
    """Takes records whose letter has to be written."""

    def add(self, record: InHand, facts: FailureFacts) -> None:
        """Write this letter; the record is done once a sink has it."""
        ...


class Settlement:
    """Applies outcomes. ``fail`` ends the pipeline; ``resume`` is asked when a partition has room again."""

    def __init__(
        self,
        *,
        pipeline: str,
        classification: Decides,
        policy: RetryPolicy,
        breaker: Breaker[InHand],
        lanes: Lanes,
        letters: DeadLetters,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        fail: Callable[[BaseException], None],
        resume: Callable[[AssignedPartition], None],
        wake: Callable[[], None],
    ) -> None:
        self._pipeline = pipeline
        self._classification = classification
        self._policy = policy
        self._breaker = breaker
        self._lanes = lanes
        self._letters = letters
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._fail = fail
        self._resume = resume
        self._wake = wake
        self._probes: Timers[None] = Timers(clock, lambda _: wake())
        self.waiting: Timers[InHand] = Timers(clock, lanes.again)
        """Records in backoff; they hold their lane and no worker."""
        self.counts = RecordCounts()
        self.outage_rule = ""
        self._outages = 0.0
        """Seconds that outages have lasted so far: they are charged to no record."""

    def close(self) -> None:
        """Forget every record that waits."""
        self.waiting.close()
        self._probes.close()

    # -- done ------------------------------------------------------------------------------------------------------------

    def succeeded(self, record: InHand) -> None:
        """The handler returned None: the record is handled."""
        breaker = self._breaker
        if breaker.is_watching and breaker.succeeded(record):
            self._outage_ended()
        if record.replaying is not None:
            record.replaying.succeeded()
            self._lanes.release(record)
            return
        if not record.partition.is_closed:
            self.counts.handled += 1
        self.finish(record)

    def finish(self, record: InHand) -> None:
        """The record is done: it no longer holds its offset or its lane. Nothing of a partition that was lost counts."""
        partition = record.partition
        if not partition.is_closed:
            partition.done(record)
            if partition.is_paused:
                self._resume(partition)
        self._lanes.release(record)

    # -- failed ----------------------------------------------------------------------------------------------------------

    def abandoned(self, record: InHand) -> None:
        """The call was cancelled because its partition goes: delivered elsewhere, no attempt counted."""
        self._probed(record)
        if record.replaying is not None:
            record.replaying.failed(AssignmentLost(f"{record.partition.tp} went to another member during the replay"))
        self._lanes.release(record)

    def failed(self, record: InHand, error: BaseException, stage: Stage) -> None:
        """A call failed: classify it, and do what follows."""
        self._probed(record)
        if record.replaying is not None:
            self._replay_failed(record, error, stage)
            return
        if record.partition.is_closed:
            self._lanes.release(record)
            return
        failing = record.failing or Failing(first_failed_at=self._clock.now())
        record.failing = failing
        failing.calls += 1
        decision = returned(error) or self._classification.decide(
            Failure(error=error, record=record.raw, stage=stage, attempt=failing.attempts + 1)
        )
        self._follow(record, failing, decision, error, stage)

    def _follow(self, record: InHand, failing: Failing, decision: Decision, error: BaseException, stage: Stage) -> None:
        now = self._clock.monotonic()
        worked = now - self._outages
        since = worked if failing.charged_since is None else failing.charged_since
        outcome = judge(
            decision,
            attempts=failing.attempts + 1,
            elapsed=worked - since,
            policy=self._policy,
            is_outage=self._breaker.is_open,
            random=self._random,
        )
        if isinstance(outcome, Retrying | DeadLettered):
            failing.attempts += 1
            failing.charged_since = since
            if decision.verdict is Verdict.RETRY and self._is_outage_now(record, now, error):
                outcome = Outage(rule=self.outage_rule)
        match outcome:
            case Retrying(delay=delay):
                self.counts.retried += 1
                self.waiting.schedule(record, delay)
            case DeadLettered(rule=rule):
                self._letters.add(record, self._facts(failing, rule, error, stage))
            case Skipped(rule=rule):
                self.counts.skipped += 1
                self._telemetry.emit(
                    RecordSkipped(
                        pipeline=self._pipeline,
                        topic=record.raw.topic,
                        partition=record.raw.partition,
                        offset=record.raw.offset,
                        rule=rule,
                        error=type(error).__qualname__,
                    )
                )
                self.finish(record)
            case Outage(rule=rule):
                self._wait_for_dependency(record, rule, now, error)
            case Stopped(rule=rule):
                self._fail(_stopped(record, rule, error))
            case _:
                assert_never(outcome)

    def _facts(self, failing: Failing, rule: str, error: BaseException, stage: Stage) -> FailureFacts:
        return FailureFacts(
            error=error,
            stage=stage,
            # A record that cannot be decoded was never given to the handler.
            attempts=failing.attempts - 1 if stage is Stage.DECODE else failing.attempts,
            first_failed_at=failing.first_failed_at,
            last_failed_at=self._clock.now(),
            rule=rule,
        )

    # -- outages ---------------------------------------------------------------------------------------------------------

    def _is_outage_now(self, record: InHand, now: float, error: BaseException) -> bool:
        """Tell the breaker of a charged failure; True when that opened it, with every charge in its window given back."""
        # A record without a key has no order with any other: each counts as a key of its own.
        key = (record.partition.tp, record.raw.key if record.raw.key is not None else record.raw.offset)
        charged = self._breaker.failed(record, key, now)
        if charged is None:
            return False
        self.outage_rule = f"{len(charged)} records failed and none succeeded"
        self._give_back(charged)
        self._outage_began(self.outage_rule, error)
        return True

    def _wait_for_dependency(self, record: InHand, rule: str, now: float, error: BaseException) -> None:
        if not self._breaker.is_open:
            self.outage_rule = rule
            self._give_back(self._breaker.pause(now))
            self._outage_began(rule, error)
        self.counts.deferred += 1
        self._schedule_probe()
        self._lanes.again(record)

    def _give_back(self, charged: Sequence[InHand]) -> None:
        for record in charged:
            failing = record.failing
            if failing is not None and failing.letter is None:
                failing.attempts = max(0, failing.attempts - 1)
                failing.charged_since = None

    def _outage_began(self, rule: str, error: BaseException) -> None:
        self._schedule_probe()
        self._telemetry.emit(
            OutageBegan(pipeline=self._pipeline, rule=rule, error=f"{type(error).__qualname__}: {error}"[:500])
        )

    def _outage_ended(self) -> None:
        self._probes.close()
        lasted = self._clock.monotonic() - self._breaker.opened_at
        self._outages += lasted
        self._telemetry.emit(OutageEnded(pipeline=self._pipeline, seconds=lasted))
        self._wake()

    def _schedule_probe(self) -> None:
        self._probes.close()
        self._probes.schedule(None, self._breaker.next_probe_at - self._clock.monotonic())

    def _probed(self, record: InHand) -> None:
        self._breaker.probed(record)
        if self._breaker.is_open:
            self._schedule_probe()

    # -- replays ---------------------------------------------------------------------------------------------------------

    def _replay_failed(self, record: InHand, error: BaseException, stage: Stage) -> None:
        assert record.replaying is not None
        verdict = (
            returned(error)
            or self._classification.decide(Failure(error=error, record=record.raw, stage=stage, attempt=1))
        ).verdict
        if verdict is Verdict.SKIP:
            record.replaying.succeeded()
        elif verdict is Verdict.PAUSE or (verdict is Verdict.RETRY and self._breaker.is_open):
            record.replaying.failed(ReplayPostponed(f"the dependency is out: {type(error).__qualname__}: {error}"))
        elif isinstance(error, Exception):
            record.replaying.failed(error)
        else:
            record.replaying.failed(RecordError(f"the handler raised {type(error).__qualname__}: {error}"))
        self._lanes.release(record)


def _stopped(record: InHand, rule: str, error: BaseException) -> PipelineStopped:
    at = f"{record.raw.topic}-{record.raw.partition}@{record.raw.offset}"
    stopped = PipelineStopped(
        f"{rule} said stop for {at}: {type(error).__qualname__}: {error}",
        suggestion="mend the cause, then `outboxd resume` the pipeline: it goes on with this record",
    )
    stopped.__cause__ = error
    return stopped

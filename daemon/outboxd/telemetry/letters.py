"""What happens to dead letters: the instruments, and one event class per happening."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from outboxd.api.context import Logger

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from outboxd.telemetry.metrics import Instruments

__all__ = [
    "ChainExhausted",
    "ClassifierFailed",
    "DrainFailed",
    "LetterInstruments",
    "LettersDrained",
    "LettersRefused",
    "LettersWritten",
    "ObserverFailed",
    "ReplayClaimFailed",
    "ReplayFinished",
    "ReplayReturned",
    "SinkAnsweredLate",
    "SinkCloseFailed",
    "SinkFailed",
    "SinkRecovered",
]

_LOGGED_MESSAGE = 500


class LetterInstruments:
    """The metric instruments of dead letters. Labels: pipeline and sink, of written letters also the reason."""

    __slots__ = (
        "breaker_open",
        "classifier_failures",
        "drain_failures",
        "drain_lag",
        "drained",
        "exhausted",
        "foreign",
        "in_use",
        "refused",
        "replays",
        "sink_failures",
        "written",
    )

    def __init__(self, meter: Meter) -> None:
        self.written = meter.create_counter(
            "outboxd_letters_written", description="Letters that a sink has durably, by the rule that decided"
        )
        self.refused = meter.create_counter(
            "outboxd_letters_refused", description="Letters that a sink refused for what they are"
        )
        self.exhausted = meter.create_counter(
            "outboxd_chain_exhausted", description="Times that no sink of the chain took a letter"
        )
        self.sink_failures = meter.create_counter(
            "outboxd_sink_failures", description="Writes that a sink did not answer in time or failed"
        )
        self.breaker_open = meter.create_gauge(
            "outboxd_sink_breaker_open", description="1 while a sink is passed over because it failed"
        )
        self.in_use = meter.create_gauge(
            "outboxd_sink_in_use", description="1 for the sink that took the latest letters of its chain"
        )
        self.drained = meter.create_counter(
            "outboxd_letters_drained", description="Letters carried home from a topic or a spool"
        )
        self.drain_failures = meter.create_counter(
            "outboxd_drain_failures", description="Times that a drain could not read its sink or write the home"
        )
        self.drain_lag = meter.create_gauge(
            "outboxd_drain_lag_seconds", unit="s", description="Age of the oldest letter seen that is not home yet"
        )
        self.foreign = meter.create_counter(
            "outboxd_letters_foreign", description="Letters of other pipelines that a drain passed over"
        )
        self.classifier_failures = meter.create_counter(
            "outboxd_classifier_failures", description="Calls of a classifier plugin that raised"
        )
        self.replays = meter.create_counter(
            "outboxd_letters_replayed", description="Replayed letters by outcome: resolved, failed or returned"
        )

    def declare(self, pipeline: str, sinks: Sequence[str]) -> None:
        """Create this chain's series at zero, so that a rate over them is right from the first letter on."""
        self.exhausted.add(0, {"pipeline": pipeline})
        for sink in sinks:
            labels = {"pipeline": pipeline, "sink": sink}
            for counter in (self.refused, self.sink_failures, self.drained, self.drain_failures, self.foreign):
                counter.add(0, labels)
            self.breaker_open.set(0, labels)
            self.in_use.set(0, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersWritten:
    """A sink has these letters durably. ``rules`` are the reasons, one per letter; ``others`` the chain's other sinks."""

    pipeline: str
    sink: str
    rules: Sequence[str]
    letter_ids: Sequence[UUID]
    others: Sequence[str] = ()

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count by reason; one log line, since each letter is for a person to look at."""
        letters = instruments.letters
        for rule in self.rules:
            letters.written.add(1, {"pipeline": self.pipeline, "sink": self.sink, "reason": rule})
        letters.in_use.set(1, {"pipeline": self.pipeline, "sink": self.sink})
        for other in self.others:
            letters.in_use.set(0, {"pipeline": self.pipeline, "sink": other})
        logger.warning(
            "letters_written",
            pipeline=self.pipeline,
            sink=self.sink,
            count=len(self.letter_ids),
            letter_ids=[str(letter_id) for letter_id in self.letter_ids[:10]],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersRefused:
    """A sink refused these letters for what they are; they go on down the chain."""

    pipeline: str
    sink: str
    letter_ids: Sequence[UUID]
    reason: str
    next_sink: str | None

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count and log."""
        instruments.letters.refused.add(len(self.letter_ids), {"pipeline": self.pipeline, "sink": self.sink})
        logger.warning(
            "letters_refused",
            pipeline=self.pipeline,
            sink=self.sink,
            letter_ids=[str(letter_id) for letter_id in self.letter_ids[:10]],
            reason=self.reason[:_LOGGED_MESSAGE],
            next_sink=self.next_sink,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFailed:
    """A sink did not take its letters; ``next_sink`` gets them, and is passed over to for ``skipped_for`` seconds."""

    pipeline: str
    sink: str
    reason: str
    skipped_for: float
    next_sink: str | None

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count, show the breaker, log."""
        labels = {"pipeline": self.pipeline, "sink": self.sink}
        instruments.letters.sink_failures.add(1, labels)
        instruments.letters.breaker_open.set(1, labels)
        logger.warning(
            "sink_failed",
            pipeline=self.pipeline,
            sink=self.sink,
            reason=self.reason[:_LOGGED_MESSAGE],
            skipped_for=round(self.skipped_for, 3),
            next_sink=self.next_sink,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkRecovered:
    """A sink that had failed took letters, or opened, again."""

    pipeline: str
    sink: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Close the breaker and log."""
        instruments.letters.breaker_open.set(0, {"pipeline": self.pipeline, "sink": self.sink})
        logger.info("sink_recovered", pipeline=self.pipeline, sink=self.sink)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkAnsweredLate:
    """A sink that was given up on answered after all; its letters may stand in two places until the drain."""

    pipeline: str
    sink: str

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002 - nothing to measure
        """Log only: nothing is wrong, and nothing is to be done."""
        logger.info("sink_answered_late", pipeline=self.pipeline, sink=self.sink)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkCloseFailed:
    """A sink did not close in time, or raised; whatever it still holds ends with the process."""

    pipeline: str
    sink: str
    reason: str

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002 - nothing to measure
        """Log."""
        logger.warning(
            "sink_close_failed", pipeline=self.pipeline, sink=self.sink, reason=self.reason[:_LOGGED_MESSAGE]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainExhausted:
    """No sink took these letters: their partition waits."""

    pipeline: str
    reason: str
    letter_ids: Sequence[UUID]
    message: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count and log as an error: an operator must act."""
        instruments.letters.exhausted.add(1, {"pipeline": self.pipeline})
        logger.error(
            "chain_exhausted",
            pipeline=self.pipeline,
            reason=self.reason,
            letter_ids=[str(letter_id) for letter_id in self.letter_ids[:10]],
            message=self.message[:_LOGGED_MESSAGE],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverFailed:
    """A plugin that watches letters raised; the letters are not affected."""

    pipeline: str
    error: str

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002 - nothing to measure
        """Log."""
        logger.warning("letter_observer_failed", pipeline=self.pipeline, error=self.error[:_LOGGED_MESSAGE])


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierFailed:
    """A classifier plugin raised; its opinion counts as none."""

    pipeline: str
    classifier: str
    error: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count and log."""
        instruments.letters.classifier_failures.add(1, {"pipeline": self.pipeline, "classifier": self.classifier})
        logger.error(
            "classifier_failed",
            pipeline=self.pipeline,
            classifier=self.classifier,
            error=self.error[:_LOGGED_MESSAGE],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersDrained:
    """A batch of a sink was carried home: ``new`` were not there yet. ``lag`` is its oldest letter's age in seconds."""

    pipeline: str
    sink: str
    count: int
    new: int
    foreign: int
    lag: float

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count; a log line only when something new came home."""
        labels = {"pipeline": self.pipeline, "sink": self.sink}
        instruments.letters.drained.add(self.new, labels)
        instruments.letters.foreign.add(self.foreign, labels)
        instruments.letters.drain_lag.set(self.lag, labels)
        if self.new:
            logger.info("letters_drained", **labels, count=self.count, new=self.new, foreign=self.foreign)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainFailed:
    """A drain could not go on; it tries again after ``retry_in`` seconds. Nothing is lost meanwhile."""

    pipeline: str
    sink: str
    reason: str
    retry_in: float

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count and log."""
        labels = {"pipeline": self.pipeline, "sink": self.sink}
        instruments.letters.drain_failures.add(1, labels)
        logger.warning("drain_failed", **labels, reason=self.reason[:_LOGGED_MESSAGE], retry_in=round(self.retry_in, 3))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFinished:
    """A replayed letter was handled, or failed again."""

    pipeline: str
    job_id: UUID
    letter_id: UUID
    attempt: int
    error: str | None

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count and log."""
        outcome = "resolved" if self.error is None else "failed"
        instruments.letters.replays.add(1, {"pipeline": self.pipeline, "outcome": outcome})
        logger.info(
            "replay_finished",
            pipeline=self.pipeline,
            job_id=str(self.job_id),
            letter_id=str(self.letter_id),
            attempt=self.attempt,
            outcome=outcome,
            error=None if self.error is None else self.error[:_LOGGED_MESSAGE],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReturned:
    """A claimed letter was not run: its partition moved on, or this replica stops. Somebody else will."""

    pipeline: str
    job_id: UUID
    letter_id: UUID
    reason: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count and log."""
        instruments.letters.replays.add(1, {"pipeline": self.pipeline, "outcome": "returned"})
        logger.info(
            "replay_returned",
            pipeline=self.pipeline,
            job_id=str(self.job_id),
            letter_id=str(self.letter_id),
            reason=self.reason[:_LOGGED_MESSAGE],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayClaimFailed:
    """The home could not be asked for, or told of, replays; tried again after ``retry_in`` seconds."""

    pipeline: str
    reason: str
    retry_in: float

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002 - nothing to measure
        """Log."""
        logger.warning(
            "replay_claim_failed",
            pipeline=self.pipeline,
            reason=self.reason[:_LOGGED_MESSAGE],
            retry_in=round(self.retry_in, 3),
        )

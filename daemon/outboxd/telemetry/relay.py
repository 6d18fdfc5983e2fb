"""What happens to relays: the instruments, and one event class per happening. An event per batch, never per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from outboxd.api.context import Logger
    from outboxd.telemetry.metrics import Instruments

__all__ = [
    "ActionFailed",
    "BatchFailed",
    "BatchPublished",
    "KeyBlocked",
    "KeyReleased",
    "OutageBegan",
    "OutageEnded",
    "RelayInstruments",
    "RelayMeasured",
    "RowsMarked",
    "ShardAcquired",
    "ShardLost",
    "ShardRecovered",
    "ShardReleased",
    "TopicPaused",
    "TopicResumed",
]


class RelayInstruments:
    """The metric instruments of relays."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.published = meter.create_counter(
            "outboxd_relay_rows_published", description="rows that the broker acknowledged"
        )
        self.marked = meter.create_counter("outboxd_relay_rows_marked", description="rows marked or deleted")
        self.failed_batches = meter.create_counter(
            "outboxd_relay_batches_failed", description="batches that were not acknowledged, by reason"
        )
        self.send_seconds = meter.create_histogram(
            "outboxd_relay_send_seconds", unit="s", description="from handing a batch to the producer to its answer"
        )
        self.failed_actions = meter.create_counter(
            "outboxd_relay_actions_failed", description="calls of actions that failed"
        )
        self.recoveries = meter.create_counter(
            "outboxd_relay_recoveries", description="times a shard was fenced and its log read back"
        )
        self.found = meter.create_counter(
            "outboxd_relay_rows_found", description="rows that a recovery found in the log and did not send again"
        )
        self.possible_duplicates = meter.create_counter(
            "outboxd_relay_possible_duplicates",
            description="records past the bound of a recovery's read: their rows may have been sent twice",
        )
        self.lost_shards = meter.create_counter("outboxd_relay_shards_lost", description="leases lost to another owner")
        self.outages = meter.create_counter("outboxd_relay_outages", description="outages that began, by reason")
        self.shards = meter.create_gauge("outboxd_relay_shards_owned", description="shards owned by this replica")
        self.in_flight = meter.create_gauge("outboxd_relay_rows_in_flight", description="rows held in memory")
        self.blocked = meter.create_gauge("outboxd_relay_keys_blocked", description="keys that wait for a failed row")
        self.paused = meter.create_gauge(
            "outboxd_relay_topics_paused", description="topics that cannot be published to"
        )
        self.oldest = meter.create_gauge(
            "outboxd_relay_oldest_pending_seconds",
            unit="s",
            description="age of the oldest pending row by the database's clock; 0 when nothing is pending",
        )

    def zero(self, pipeline: str) -> None:
        """Create this pipeline's series at zero, so that a first increase is seen as one."""
        labels = {"pipeline": pipeline}
        for counter in (self.marked, self.recoveries, self.found, self.possible_duplicates, self.lost_shards):
            counter.add(0, labels)
        for reason in ("broker_unreachable", "database_unreachable", "mark_refused"):
            self.outages.add(0, {**labels, "reason": reason})
        for gauge in (self.shards, self.in_flight, self.blocked, self.paused, self.oldest):
            gauge.set(0, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPublished:
    """The broker acknowledged a batch of rows."""

    pipeline: str
    topic: str
    count: int
    seconds: float

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # normal work: metrics alone
        """Count the rows and the time."""
        labels = {"pipeline": self.pipeline, "topic": self.topic}
        instruments.relay.published.add(self.count, labels)
        instruments.relay.send_seconds.record(self.seconds, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """A batch was not acknowledged; its rows stay pending."""

    pipeline: str
    topic: str
    count: int
    reason: str
    error: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Warn and count."""
        labels = {"pipeline": self.pipeline, "topic": self.topic, "reason": self.reason}
        instruments.relay.failed_batches.add(1, labels)
        logger.warning("batch_failed", **labels, rows=self.count, error=self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsMarked:
    """Rows are marked or deleted: they are done."""

    pipeline: str
    count: int

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # normal work: metrics alone
        """Count the rows."""
        instruments.relay.marked.add(self.count, {"pipeline": self.pipeline})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFailed:
    """An action raised or took too long; the row's key waits and only its actions are tried again."""

    pipeline: str
    topic: str
    action: str
    row_id: int
    error: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Warn and count."""
        labels = {"pipeline": self.pipeline, "topic": self.topic, "action": self.action}
        instruments.relay.failed_actions.add(1, labels)
        logger.warning("action_failed", **labels, row_id=self.row_id, error=self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBlocked:
    """A row cannot go on; later rows of its key wait behind it."""

    pipeline: str
    topic: str
    row_id: int
    error: str
    attempts: int
    retry_in: float

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # the gauge is set in RelayMeasured
        """Warn."""
        logger.warning(
            "key_blocked",
            pipeline=self.pipeline,
            topic=self.topic,
            row_id=self.row_id,
            error=self.error,
            attempts=self.attempts,
            retry_in=round(self.retry_in, 3),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReleased:
    """A blocked row went through; its key flows again."""

    pipeline: str
    topic: str
    row_id: int

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # the gauge is set in RelayMeasured
        """Say so."""
        logger.info("key_released", pipeline=self.pipeline, topic=self.topic, row_id=self.row_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPaused:
    """A topic cannot be published to; its rows wait, other topics flow."""

    pipeline: str
    topic: str
    error: str
    retry_in: float

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # the gauge is set in RelayMeasured
        """Warn."""
        logger.warning(
            "topic_paused", pipeline=self.pipeline, topic=self.topic, error=self.error, retry_in=round(self.retry_in, 3)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResumed:
    """A paused topic is tried again."""

    pipeline: str
    topic: str

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # the gauge is set in RelayMeasured
        """Say so."""
        logger.info("topic_resumed", pipeline=self.pipeline, topic=self.topic)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageBegan:
    """The broker or the database does not answer, or refuses marks; nothing is charged for it."""

    pipeline: str
    reason: str
    error: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Warn and count."""
        labels = {"pipeline": self.pipeline, "reason": self.reason}
        instruments.relay.outages.add(1, labels)
        logger.warning("outage_began", **labels, error=self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageEnded:
    """It answers again, or takes marks again."""

    pipeline: str
    reason: str

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # its beginning was counted
        """Say so."""
        logger.info("outage_ended", pipeline=self.pipeline, reason=self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardAcquired:
    """This replica took a shard's lease."""

    pipeline: str
    shard: int
    epoch: int
    is_clean: bool

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # the gauge is set in RelayMeasured
        """Say so."""
        logger.info(
            "shard_acquired", pipeline=self.pipeline, shard=self.shard, epoch=self.epoch, is_clean=self.is_clean
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardReleased:
    """This replica gave a shard up; without ``is_clean`` the next owner waits the lease out and reads the log."""

    pipeline: str
    shard: int
    is_clean: bool

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # the gauge is set in RelayMeasured
        """Say so."""
        logger.info("shard_released", pipeline=self.pipeline, shard=self.shard, is_clean=self.is_clean)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLost:
    """Another replica took the shard; everything about it was forgotten."""

    pipeline: str
    shard: int
    epoch: int

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Warn and count."""
        instruments.relay.lost_shards.add(1, {"pipeline": self.pipeline})
        logger.warning("shard_lost", pipeline=self.pipeline, shard=self.shard, epoch=self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecovered:
    """A shard has a new producer; when its past was uncertain, older ones are fenced and the log was read back."""

    pipeline: str
    shard: int
    was_uncertain: bool
    fenced: int
    found: int
    unread: int

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Count; warn when the read ended at its bound."""
        if not self.was_uncertain:
            return
        labels = {"pipeline": self.pipeline}
        instruments.relay.recoveries.add(1, labels)
        instruments.relay.found.add(self.found, labels)
        instruments.relay.possible_duplicates.add(self.unread, labels)
        fields = {"shard": self.shard, "partitions": self.fenced, "rows_found": self.found}
        if self.unread:
            logger.warning("shard_recovered_in_part", **labels, **fields, records_unread=self.unread)
        else:
            logger.info("shard_recovered", **labels, **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayMeasured:
    """How a relay stands at this moment."""

    pipeline: str
    shards: int
    in_flight: int
    blocked: int
    paused: int
    oldest: float | None

    def record(self, logger: Logger, instruments: Instruments) -> None:  # noqa: ARG002  # gauges alone
        """Set the gauges."""
        labels = {"pipeline": self.pipeline}
        relay = instruments.relay
        relay.shards.set(self.shards, labels)
        relay.in_flight.set(self.in_flight, labels)
        relay.blocked.set(self.blocked, labels)
        relay.paused.set(self.paused, labels)
        relay.oldest.set(self.oldest or 0, labels)

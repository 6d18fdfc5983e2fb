"""What happens to consumers: the instruments, and one event class per happening."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from outboxd.api.context import Logger
    from outboxd.records import TopicPartition
    from outboxd.telemetry.metrics import Instruments

__all__ = [
    "CommitFailed",
    "ConsumerInstruments",
    "ConsumerRebuilt",
    "LagMeasured",
    "OffsetsCommitted",
    "OutageBegan",
    "OutageEnded",
    "PartitionParked",
    "PartitionsAssigned",
    "PartitionsRevoked",
    "RangeLost",
    "RecordCounts",
    "RecordSkipped",
    "RecordsSettled",
]


class ConsumerInstruments:
    """The metric instruments of consumers."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.records = meter.create_counter(
            "outboxd_consumer_records", description="records by outcome: handled, skipped, dead_lettered"
        )
        self.retries = meter.create_counter(
            "outboxd_consumer_retries", description="calls that failed and will be made again"
        )
        self.deferrals = meter.create_counter(
            "outboxd_consumer_deferrals", description="calls that failed in an outage and were not charged"
        )
        self.commits = meter.create_counter(
            "outboxd_consumer_commits", description="commits by result: ok, lost, failed"
        )
        self.rebalances = meter.create_counter("outboxd_consumer_rebalances", description="assignments received")
        self.rebuilds = meter.create_counter(
            "outboxd_consumer_rebuilds", description="clients replaced because they had stopped moving"
        )
        self.outages = meter.create_counter("outboxd_consumer_outages", description="times the breaker opened")
        self.lost_offsets = meter.create_counter(
            "outboxd_consumer_lost_offsets", description="offsets that retention removed before they were read"
        )
        self.lag = meter.create_gauge(
            "outboxd_consumer_lag",
            description="offsets between the end of the partition and the first that is not done",
        )
        self.pending = meter.create_gauge("outboxd_consumer_pending", description="records in hand")
        self.is_out = meter.create_gauge("outboxd_consumer_dependency_out", description="1 while the breaker is open")
        self.parked = meter.create_gauge(
            "outboxd_consumer_parked_partitions", description="partitions that cannot be read"
        )

    def zero(self, pipeline: str) -> None:
        """Create this pipeline's counters at zero, so that a first increase is seen as one."""
        labels = {"pipeline": pipeline}
        for outcome in ("handled", "skipped", "dead_lettered"):
            self.records.add(0, {**labels, "outcome": outcome})
        for result in ("ok", "lost", "failed"):
            self.commits.add(0, {**labels, "result": result})
        for counter in (self.retries, self.deferrals, self.rebalances, self.rebuilds, self.outages, self.lost_offsets):
            counter.add(0, labels)
        self.is_out.set(0, labels)
        self.parked.set(0, labels)


@dataclass(slots=True)
class RecordCounts:
    """Outcomes since they were last written down: the hot path only adds."""

    handled: int = 0
    skipped: int = 0
    retried: int = 0
    deferred: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsSettled:
    """So many records came to an outcome since the last such event."""

    pipeline: str
    counts: RecordCounts
    dead_lettered: int
    pending: int

    def record(self, _logger: Logger, instruments: Instruments) -> None:
        """Metrics only: normal work."""
        consumer = instruments.consumer
        labels = {"pipeline": self.pipeline}
        counts = self.counts
        for outcome, count in (
            ("handled", counts.handled),
            ("skipped", counts.skipped),
            ("dead_lettered", self.dead_lettered),
        ):
            if count:
                consumer.records.add(count, {**labels, "outcome": outcome})
        if counts.retried:
            consumer.retries.add(counts.retried, labels)
        if counts.deferred:
            consumer.deferrals.add(counts.deferred, labels)
        consumer.pending.set(self.pending, labels)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSkipped:
    """A rule said `skip` for a record."""

    pipeline: str
    topic: str
    partition: int
    offset: int
    rule: str
    error: str

    def record(self, logger: Logger, _instruments: Instruments) -> None:
        """Where it stood and which rule; the count goes with `RecordsSettled`."""
        logger.info(
            "record_skipped",
            pipeline=self.pipeline,
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            rule=self.rule,
            error=self.error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """The broker has these next offsets."""

    pipeline: str
    offsets: Mapping[TopicPartition, int]

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Normal work."""
        instruments.consumer.commits.add(1, {"pipeline": self.pipeline, "result": "ok"})
        logger.debug("offsets_committed", pipeline=self.pipeline, partitions=len(self.offsets))


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFailed:
    """A commit was refused (``is_lost``: the partitions moved on, their records are delivered elsewhere) or not answered."""

    pipeline: str
    error: str
    is_lost: bool

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """No alarm when the partitions moved on."""
        result = "lost" if self.is_lost else "failed"
        instruments.consumer.commits.add(1, {"pipeline": self.pipeline, "result": result})
        if self.is_lost:
            logger.info("commit_superseded", pipeline=self.pipeline, error=self.error)
        else:
            logger.warning("commit_failed", pipeline=self.pipeline, error=self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAssigned:
    """A rebalance gave this replica these partitions."""

    pipeline: str
    partitions: int
    epoch: int

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Seldom, and worth knowing."""
        instruments.consumer.rebalances.add(1, {"pipeline": self.pipeline})
        logger.info("partitions_assigned", pipeline=self.pipeline, partitions=self.partitions, epoch=self.epoch)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsRevoked:
    """A rebalance took partitions; ``abandoned`` calls were still running, ``forgotten`` records are delivered elsewhere."""

    pipeline: str
    partitions: int
    abandoned: int
    forgotten: int

    def record(self, logger: Logger, _instruments: Instruments) -> None:
        """Seldom, and worth knowing."""
        logger.info(
            "partitions_revoked",
            pipeline=self.pipeline,
            partitions=self.partitions,
            abandoned=self.abandoned,
            forgotten=self.forgotten,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLost:
    """Offsets [``wanted``, ``first``) are not in the log any more; reading goes on at ``first``."""

    pipeline: str
    topic: str
    partition: int
    wanted: int
    first: int

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Data that nobody will read: an error."""
        instruments.consumer.lost_offsets.add(max(0, self.first - self.wanted), {"pipeline": self.pipeline})
        logger.error(
            "offset_out_of_range",
            pipeline=self.pipeline,
            topic=self.topic,
            partition=self.partition,
            wanted=self.wanted,
            first=self.first,
            remedy="records in this range were removed before they were read: raise the topic's retention",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionParked:
    """A batch of this partition cannot be decoded by the client; nothing after it is read."""

    pipeline: str
    topic: str
    partition: int
    offset: int
    error: str

    def record(self, logger: Logger, _instruments: Instruments) -> None:
        """Somebody has to look; the gauge of parked partitions goes with `LagMeasured`."""
        logger.error(
            "partition_parked",
            pipeline=self.pipeline,
            topic=self.topic,
            partition=self.partition,
            offset=self.offset,
            error=self.error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageBegan:
    """The breaker opened: the dependency of the handler is out."""

    pipeline: str
    rule: str
    error: str

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Once per outage."""
        instruments.consumer.outages.add(1, {"pipeline": self.pipeline})
        instruments.consumer.is_out.set(1, {"pipeline": self.pipeline})
        logger.warning("dependency_out", pipeline=self.pipeline, rule=self.rule, error=self.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageEnded:
    """A probe succeeded; it lasted so many seconds."""

    pipeline: str
    seconds: float

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Once per outage."""
        instruments.consumer.is_out.set(0, {"pipeline": self.pipeline})
        logger.info("dependency_back", pipeline=self.pipeline, seconds=round(self.seconds, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerRebuilt:
    """The client had records to read and did not move: it was replaced."""

    pipeline: str
    partition: str
    seconds: float

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Seldom, and worth a look."""
        instruments.consumer.rebuilds.add(1, {"pipeline": self.pipeline})
        logger.warning(
            "consumer_rebuilt", pipeline=self.pipeline, partition=self.partition, still_for=round(self.seconds)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LagMeasured:
    """How far each partition of this replica is behind its end."""

    pipeline: str
    lags: Mapping[TopicPartition, int]
    parked: int

    def record(self, _logger: Logger, instruments: Instruments) -> None:
        """Metrics only."""
        instruments.consumer.parked.set(self.parked, {"pipeline": self.pipeline})
        for (topic, partition), lag in self.lags.items():
            instruments.consumer.lag.set(lag, {"pipeline": self.pipeline, "topic": topic, "partition": partition})

"""What a run says about itself: its health for the supervisor, and its counts for the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from outboxd.pipeline.consumer.membership import Membership
from outboxd.pipeline.consumer.processing import Processing
from outboxd.pipeline.run import Stall
from outboxd.telemetry.consumer import RecordCounts, RecordsSettled
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Reporter"]


class Reporter:
    """Reads the parts of a run; changes none of them but the counts that it writes down."""

    def __init__(self, *, pipeline: str, processing: Processing, telemetry: Telemetry) -> None:
        self._pipeline = pipeline
        self._processing = processing
        self._telemetry = telemetry
        self._written = 0
        self._pending = 0

    async def every(self, seconds: float) -> None:
        """Write counts down until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            self.report()

    def report(self) -> None:
        """Write down what happened since the last time."""
        processing = self._processing
        counts, processing.settlement.counts = processing.settlement.counts, RecordCounts()
        written = processing.letters.written
        self._telemetry.emit(
            RecordsSettled(
                pipeline=self._pipeline,
                counts=counts,
                dead_lettered=written - self._written,
                pending=self._pending,
            )
        )
        self._written = written

    def stall(self, membership: Membership | None) -> Stall | None:
        """The most telling reason why progress is not made; None when it is, or nothing is pending (invariant 12)."""
        return next(self._stalls(membership), None)

    def detail(self, membership: Membership | None) -> dict[str, object]:
        """Numbers for the status."""
        processing = self._processing
        partitions = [] if membership is None else list(membership.partitions.values())
        self._pending = sum(partition.count for partition in partitions)
        return {
            "assigned": sorted(str(partition.tp) for partition in partitions),
            "pending": self._pending,
            "in_flight": processing.workers.in_flight,
            "retrying": len(processing.settlement.waiting),
            "letters_pending": len(processing.letters),
            "committed": {
                str(partition.tp): partition.progress.committed
                for partition in partitions
                if partition.progress is not None and partition.progress.committed is not None
            },
            "lag": {} if membership is None else {str(tp): lag for tp, lag in membership.lag.lags.items()},
            "last_error": None
            if membership is None
            else membership.committer.last_error or membership.assignment.last_error,
        }

    def _stalls(self, membership: Membership | None) -> Iterator[Stall]:
        processing = self._processing
        partitions = [] if membership is None else list(membership.partitions.values())
        if membership is not None:
            for error in (membership.lag.last_error, *(partition.last_error for partition in partitions)):
                if error is not None:
                    yield Stall(reason="broker_unreachable", message=str(error))
        # With nothing in hand nobody waits for the dependency: the next record will ask it.
        if processing.breaker.is_open and any(partition.count for partition in partitions):
            yield Stall(reason="dependency_out", message=processing.settlement.outage_rule)
        if processing.letters.stall is not None:
            yield processing.letters.stall
        for partition in partitions:
            if partition.is_parked:
                yield Stall(reason="partition_parked", message=partition.parked_reason)
        overdue = processing.workers.overdue()
        if overdue is not None:
            at = f"{overdue.raw.topic}-{overdue.raw.partition}@{overdue.raw.offset}"
            yield Stall(
                reason="handler_stuck",
                message=f"the handler works on {at} past its deadline and cannot be ended: its key waits for it",
            )

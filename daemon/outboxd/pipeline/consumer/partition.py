"""What is in hand: one partition during one assignment, and one of its records from the log to its outcome.

The objects are the assignment epoch: a partition that is lost and comes back is a new `AssignedPartition`, so a result
that arrives late belongs to a closed one and changes nothing (invariant 4).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto

from outboxd.errors import AssignmentLost, BrokerError
from outboxd.pipeline.consumer.progress import Progress
from outboxd.records import Letter, RawRecord, TopicPartition

__all__ = ["AssignedPartition", "Bounds", "Failing", "Feeding", "InHand", "Replaying"]

_OVERHEAD_BYTES = 256
"""What a record in hand costs beside its key and value."""


class Feeding(Enum):
    """Which records of a partition may still be started."""

    ALL = auto()
    """Any: the partition is ours and works."""
    GAPS = auto()
    """Only those before one that was started: what a clean stop must finish so that nothing runs twice."""
    NONE = auto()
    """None: it is being taken away, or is gone."""


@dataclass(slots=True)
class Failing:
    """What is remembered of a record that failed. ``attempts`` are those charged, ``calls`` those made.

    ``charged_since`` (monotonic seconds) starts the elapsed limit; None while nothing is charged.
    """

    first_failed_at: datetime
    attempts: int = 0
    calls: int = 0
    charged_since: float | None = None
    letter: Letter | None = None
    chain_failures: int = 0


class Replaying:
    """A letter that is replayed in place: how its caller learns the outcome."""

    __slots__ = ("outcome",)

    def __init__(self, outcome: asyncio.Future[None]) -> None:
        self.outcome = outcome

    def succeeded(self) -> None:
        """The handler succeeded."""
        if not self.outcome.done():
            self.outcome.set_result(None)

    def failed(self, error: Exception) -> None:
        """It did not, or was not run."""
        if not self.outcome.done():
            self.outcome.set_exception(error)


class InHand:
    """One record from the moment it was polled until it is done or forgotten. ``next`` is the record behind it in its lane."""

    __slots__ = ("failing", "lane", "next", "partition", "raw", "replaying", "size")

    def __init__(self, raw: RawRecord, partition: AssignedPartition, lane: bytes | None, size: int) -> None:
        self.raw = raw
        self.partition = partition
        self.lane = lane
        self.size = size
        self.next: InHand | None = None
        self.failing: Failing | None = None
        self.replaying: Replaying | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may be in hand, per consumer; each partition has an equal share, so that a stuck one leaves room for the others."""

    records: int
    size: int


class AssignedPartition:
    """A partition while it is ours."""

    __slots__ = (
        "_idle",
        "busy",
        "epoch",
        "feeding",
        "highest_started",
        "is_closed",
        "is_parked",
        "is_paused",
        "last_error",
        "last_taken_at",
        "max_records",
        "max_size",
        "parked_reason",
        "progress",
        "replays",
        "size",
        "tails",
        "tp",
    )

    def __init__(self, tp: TopicPartition, *, epoch: int, bounds: Bounds, shared_by: int, now: float) -> None:
        self.tp = tp
        self.epoch = epoch
        self.max_records = max(1, bounds.records // max(1, shared_by))
        self.max_size = max(1, bounds.size // max(1, shared_by))
        self.progress: Progress[InHand] | None = None
        """None until a start position was found."""
        self.tails: dict[bytes, InHand] = {}
        """The last record of each lane with records in hand."""
        self.size = 0
        self.busy = 0
        """Records in a handler or on their way to the chain."""
        self.highest_started = -1
        self.feeding = Feeding.ALL
        self.is_paused = False
        self.is_parked = False
        self.parked_reason = ""
        self.is_closed = False
        self.last_error: BrokerError | None = None
        """Why the last poll of it failed; None when it did not."""
        self.last_taken_at = now
        self.replays: set[Replaying] = set()
        """Letters that are being replayed in lanes of this partition."""
        self._idle: asyncio.Event | None = None

    def take(self, raw: RawRecord, lane: bytes | None) -> InHand | None:
        """Count a record as in hand; None when it was delivered before in this assignment."""
        progress = self.progress
        assert progress is not None, "a partition is polled only after it has a position"
        size = _OVERHEAD_BYTES + len(raw.key or b"") + len(raw.value or b"")
        record = InHand(raw, self, lane, size)
        if not progress.took(raw.offset, record):
            return None
        self.size += size
        return record

    def done(self, record: InHand) -> None:
        """The record no longer holds the offset back."""
        progress = self.progress
        assert progress is not None, "records come only from partitions with a position"
        if progress.pending.pop(record.raw.offset, None) is not None:
            self.size -= record.size

    @property
    def count(self) -> int:
        """Records in hand."""
        return 0 if self.progress is None else len(self.progress.pending)

    @property
    def room(self) -> int:
        """How many more records may be taken; 0 when the partition has to pause."""
        if self.size >= self.max_size:
            return 0
        return max(0, self.max_records - self.count)

    @property
    def may_resume(self) -> bool:
        """True once half of its share is free again: not at the first free place, since a pause drops what was fetched."""
        return self.count <= self.max_records // 2 and self.size <= self.max_size // 2

    def began(self) -> None:
        """One of its records went to the handler or towards the chain."""
        self.busy += 1

    def ended(self) -> None:
        """It came back."""
        self.busy -= 1
        if self.busy == 0 and self._idle is not None:
            self._idle.set()

    async def idle(self) -> None:
        """Return once nothing of it is busy."""
        while self.busy:
            if self._idle is None or self._idle.is_set():  # several may wait
                self._idle = asyncio.Event()
            await self._idle.wait()

    def close(self) -> None:
        """It is not ours any more: whatever was in hand is delivered elsewhere."""
        self.is_closed = True
        self.feeding = Feeding.NONE
        self.tails.clear()
        for replaying in self.replays:
            replaying.failed(AssignmentLost(f"{self.tp} went to another member before the replay was done"))
        self.replays.clear()
        if self.progress is not None:
            self.progress.pending.clear()
        self.size = 0

"""Which record may go to the handler next: one lane per key with records in hand, and the line of those that are ready.

A lane is a linked list through its records, so that a key costs no object of its own and a record no task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from outboxd.pipeline.consumer.breaker import Breaker
from outboxd.pipeline.consumer.partition import AssignedPartition, Feeding, InHand
from outboxd.records import RawRecord, TopicPartition

__all__ = ["Lanes", "Order"]

Order = Literal["key", "partition", "none"]


class Lanes:
    """Orders records by ``order`` and gives out the ready ones; while the breaker is open only probes.

    ``on_ready`` is called when there may be something to take.
    """

    __slots__ = ("_breaker", "_lingering", "_now", "_on_ready", "_order", "_ready")

    def __init__(
        self, *, order: Order, breaker: Breaker[InHand], now: Callable[[], float], on_ready: Callable[[], None]
    ) -> None:
        self._order = order
        self._breaker = breaker
        self._now = now
        self._on_ready = on_ready
        self._ready: deque[InHand] = deque()
        self._lingering: dict[tuple[TopicPartition, bytes], InHand] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def lane_of(self, raw: RawRecord) -> bytes | None:
        """The lane a record belongs to; None when it has no order."""
        if self._order == "key":
            return raw.key
        return b"" if self._order == "partition" else None

    def add(self, records: list[InHand]) -> None:
        """Put records behind those of their lanes, in the order in which they come."""
        ready = self._ready
        for record in records:
            lane = record.lane
            if lane is None:
                ready.append(record)
                continue
            tails = record.partition.tails
            tail = tails.get(lane)
            if tail is None and self._lingering:
                # What stood behind it belonged to an earlier assignment, and is taken off here.
                tail = self._lingering.get((record.partition.tp, lane))
            tails[lane] = record
            if tail is None:
                ready.append(record)
            else:
                tail.next = record
        if ready:
            self._on_ready()

    def again(self, record: InHand) -> None:
        """The head of a lane has waited long enough: it is ready again, behind the others."""
        if record.partition.feeding is not Feeding.NONE:
            self._ready.append(record)
            self._on_ready()

    def take(self) -> InHand | None:
        """The next record that may be handled now; None when there is none."""
        ready = self._ready
        is_open = self._breaker.is_open
        if is_open and not self._breaker.may_probe(self._now()):
            return None
        while ready:
            record = ready.popleft()
            partition = record.partition
            if partition.feeding is not Feeding.ALL and not _is_gap(record, partition):
                continue
            if is_open:
                self._breaker.probing(record, self._now())
            if record.raw.offset > partition.highest_started and record.replaying is None:
                partition.highest_started = record.raw.offset
            return record
        return None

    def release(self, record: InHand) -> None:
        """The record is done: the one behind it in its lane is ready."""
        lane = record.lane
        if lane is None:
            return
        behind = record.next
        record.next = None
        tails = record.partition.tails
        if tails.get(lane) is record:
            del tails[lane]
        if self._lingering and self._lingering.get((record.partition.tp, lane)) is record:
            del self._lingering[record.partition.tp, lane]
        if behind is not None and behind.partition.feeding is not Feeding.NONE:
            self._ready.append(behind)
            self._on_ready()

    def drop_unwanted(self) -> int:
        """Forget what will not be started any more; gives how many records can still be started."""
        self._ready = deque(
            record
            for record in self._ready
            if record.partition.feeding is Feeding.ALL or _is_gap(record, record.partition)
        )
        return 0 if self._breaker.is_open else len(self._ready)

    def linger(self, record: InHand) -> None:
        """The partition goes, but a plain function still works on this record: its lane stays occupied until it returns."""
        if record.lane is not None:
            record.next = None
            self._lingering[record.partition.tp, record.lane] = record

    def forget(self, partition: AssignedPartition) -> None:
        """Drop the ready records of a partition that is gone."""
        self._ready = deque(record for record in self._ready if record.partition is not partition)


def _is_gap(record: InHand, partition: AssignedPartition) -> bool:
    return (
        partition.feeding is Feeding.GAPS
        and record.replaying is None
        and record.failing is None
        and record.raw.offset < partition.highest_started
    )

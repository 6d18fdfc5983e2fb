"""One partition as its leader keeps it: records, markers, and what it remembers of each producer id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from outboxd.errors import FetchUndecodable, OffsetOutOfRange, ProducerFenced, ProducerWedged
from outboxd.records import RawRecord, TopicPartition
from outboxd.testing.fakes.kafka.bell import Bell

__all__ = ["Fetched", "PartitionLog", "ProducerState"]

_KEPT_BATCHES: Final = 5
_FETCH: Final = 500


@dataclass(slots=True)
class ProducerState:
    """A producer id in one partition: its epoch, the sequence that comes next, and its last batches."""

    epoch: int
    next_sequence: int = 0
    batches: list[tuple[int, int, int]] = field(default_factory=list)
    """(first sequence, count, base offset), oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a fetch gives: ordinary records, and the offset after everything that it looked at.

    ``spoiled`` are offsets among them that no client can decode, with the reason. ``bell`` had rung ``count`` times.
    """

    records: Sequence[RawRecord]
    next_offset: int
    spoiled: dict[int, str]
    bell: Bell
    count: int


class PartitionLog:
    """Records and, where ``None`` stands, control records, which occupy offsets."""

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        self.start = 0
        self.slots: list[RawRecord | None] = []
        self.states: dict[int, ProducerState] = {}
        self.spoiled: dict[int, str] = {}
        self.changed = Bell()

    @property
    def end(self) -> int:
        """The offset after the last slot."""
        return self.start + len(self.slots)

    def at(self, offset: int) -> RawRecord | None:
        """What stands at an offset of the log."""
        return self.slots[offset - self.start]

    # -- writing

    def append(self, records: Sequence[RawRecord | None]) -> None:
        """Write, with no producer's state in the way."""
        self.slots.extend(records)
        self.changed.ring()

    def trim(self, start: int) -> None:
        """Retention removes everything before ``start``."""
        del self.slots[: start - self.start]
        self.start = start
        self.changed.ring()

    def admit(self, producer_id: int, epoch: int, sequence: int, count: int) -> int | None:
        """The offset of a batch that is here already, None for one to be written.

        Raises ProducerFenced for an older epoch and ProducerWedged for a sequence out of order. A producer id that the
        partition does not know may begin with any sequence.
        """
        state = self.states.get(producer_id)
        if state is None:
            return None
        if epoch < state.epoch:
            raise ProducerFenced(f"{self.partition} has seen epoch {state.epoch}, not {epoch}")
        if epoch > state.epoch:
            if sequence != 0:
                raise ProducerWedged(f"a new epoch of {self.partition} starts with sequence {sequence}")
            return None
        for first, length, base in state.batches:
            if (first, length) == (sequence, count):
                return base  # acknowledged as a repeat, and not written
        if sequence != state.next_sequence:
            raise ProducerWedged(f"{self.partition} expects sequence {state.next_sequence}, not {sequence}")
        return None

    def remember(self, producer_id: int, epoch: int, sequence: int, count: int, base: int) -> None:
        """A batch was written."""
        state = self.states.get(producer_id)
        if state is None or state.epoch != epoch:
            state = self.states[producer_id] = ProducerState(epoch)
        state.next_sequence = sequence + count
        state.batches = [*state.batches, (sequence, count, base)][-_KEPT_BATCHES:]

    def end_transaction(self, producer_id: int, epoch: int) -> None:
        """Write the marker that ends a transaction; from now on older epochs are refused here."""
        self.states[producer_id] = ProducerState(epoch)
        self.append([None])

    # -- reading

    def fetch(self, offset: int) -> Fetched:
        """What stands from the offset on. Raises OffsetOutOfRange."""
        if not self.start <= offset <= self.end:
            raise OffsetOutOfRange(f"offset {offset} of {self.partition} is outside [{self.start}, {self.end}]")
        slots = self.slots[offset - self.start : offset - self.start + _FETCH]
        next_offset = offset + len(slots)
        return Fetched(
            records=[record for record in slots if record is not None],
            next_offset=next_offset,
            spoiled={at: why for at, why in self.spoiled.items() if offset <= at < next_offset},
            bell=self.changed,
            count=self.changed.count,
        )

    def read(self, offset: int, limit: int) -> Sequence[RawRecord]:
        """Up to ``limit`` records from the offset, or from the log's start when that is later. Raises FetchUndecodable."""
        found: list[RawRecord] = []
        for record in self.slots[max(0, offset - self.start) :]:
            if record is None:
                continue
            if record.offset in self.spoiled:
                raise FetchUndecodable(f"{self.partition}@{record.offset}: {self.spoiled[record.offset]}")
            found.append(record)
            if len(found) == limit:
                break
        return found

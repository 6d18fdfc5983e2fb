"""What is known of the log: batches that the broker acknowledged, and the notes that a successor will start from."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from outboxd.ports import Notes
from outboxd.records import TopicPartition

__all__ = ["SentBatch", "Trails"]

_IDLE_LIMIT: Final = 86_400.0


class SentBatch:
    """Rows that stand in the log from one offset on; settled when all are marked or have their stage stored."""

    __slots__ = ("base", "is_settled", "partition", "row_ids", "size")

    def __init__(self, partition: TopicPartition, base: int, row_ids: Sequence[int], size: int) -> None:
        self.partition = partition
        self.base = base
        self.row_ids = row_ids
        self.size = size
        self.is_settled = False


class _Trail:
    __slots__ = ("next_offset", "outstanding", "used_at")

    def __init__(self, next_offset: int, used_at: float) -> None:
        self.next_offset = next_offset
        self.outstanding: deque[SentBatch] = deque()
        self.used_at = used_at

    def note(self) -> int:
        """The first offset whose rows may not all be settled."""
        while self.outstanding and self.outstanding[0].is_settled:
            self.outstanding.popleft()
        return self.outstanding[0].base if self.outstanding else self.next_offset


class Trails:
    """One shard's notes: for each partition the first offset of the oldest batch that is not settled, else the next.

    A partition without a note gets no batch: a successor fences and reads exactly the noted partitions.
    """

    def __init__(self, notes: Notes, now: float) -> None:
        self._trails: dict[TopicPartition, _Trail] = {}
        for name, offset in notes.items():
            topic, _, partition = name.rpartition("-")
            self._trails[TopicPartition(topic, int(partition))] = _Trail(int(offset), now)

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._trails

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The noted partitions."""
        return self._trails.keys()

    def notes(self) -> dict[str, int | str]:
        """What is stored with the lease."""
        return {str(partition): trail.note() for partition, trail in self._trails.items()}

    def offsets(self) -> Mapping[TopicPartition, int]:
        """For each noted partition the offset from which the log is read back."""
        return {partition: trail.note() for partition, trail in self._trails.items()}

    def begin(self, partition: TopicPartition, end: int, now: float) -> None:
        """Note a partition that nothing was sent to yet."""
        self._trails.setdefault(partition, _Trail(end, now)).used_at = now

    def touch(self, partition: TopicPartition, now: float) -> bool:
        """Keep the note of a partition that is about to be used; False when there is none."""
        trail = self._trails.get(partition)
        if trail is None:
            return False
        trail.used_at = now
        return True

    def acknowledged(self, batch: SentBatch, count: int, now: float) -> None:
        """A batch of ``count`` records stands in the log."""
        trail = self._trails[batch.partition]
        trail.outstanding.append(batch)
        trail.next_offset = batch.base + count
        trail.used_at = now

    def recovered(self, partition: TopicPartition, end: int, found: SentBatch | None) -> None:
        """The log was read back from the note to ``end``; ``found`` are the rows in it that were still pending."""
        trail = self._trails[partition]
        trail.next_offset = end
        if found is not None:
            trail.outstanding.appendleft(found)

    def drop_idle(self, now: float) -> None:
        """Forget partitions in which everything is settled and nothing was sent for a day."""
        for partition, trail in list(self._trails.items()):
            trail.note()
            if not trail.outstanding and now - trail.used_at > _IDLE_LIMIT:
                del self._trails[partition]

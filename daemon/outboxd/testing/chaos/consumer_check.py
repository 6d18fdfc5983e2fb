"""Compares a topic's records with what a handler wrote down and which letters there are; during a run and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from outboxd.records import Position, RawRecord
from outboxd.testing.chaos.books import Books, HandledRow, LetterRow
from outboxd.testing.chaos.report import Report, found

__all__ = ["CommitWatch", "check_consumer"]

Fails = Callable[[RawRecord], bool]
"""Whether the handler refuses this record for good, so that it must become a letter."""


def check_consumer(
    *,
    records: Sequence[RawRecord],
    handled: Sequence[HandledRow],
    letters: Sequence[LetterRow],
    committed: Mapping[int, int],
    fails: Fails,
) -> Report:
    """Whether every record of a topic was handled or became a letter, after the group had the time to finish.

    ``records`` are the topic's (`read_topic`), ``handled`` and ``letters`` what `Books` reads, ``committed`` the
    group's offset of each partition (`KafkaServer.committed_offsets`). Judges invariants 4, 5 and 6, and under 3 the
    order in which the records of a key were first handled. A record that was handled twice is no fault: a crash may
    cost a repeat; ``counts`` say how many.
    """
    runs = Counter(row.position for row in handled)
    lettered = Counter(letter.position for letter in letters)
    expected = {_position(record) for record in records if fails(record)}
    known = {_position(record) for record in records}
    return Report(
        violations=[
            *found(4, "records were neither handled nor became a letter", _lost(records, runs, lettered)),
            *found(4, "partitions are not committed to their end", _behind(records, committed)),
            *found(4, "records were handled or lettered that are not in the topic", (runs | lettered).keys() - known),
            *found(5, "letters are of records that the handler takes", _not_expected(letters, expected)),
            *found(6, "records have several letters", (_place(at) for at, count in lettered.items() if count > 1)),
            *found(4, "records that the handler refuses count as handled", map(_place, sorted(expected & runs.keys()))),
            *found(3, "records were first handled after a later one of their key", _inversions(records, handled)),
        ],
        counts={
            "records": len(records),
            "handled": len(runs),
            "handled again": sum(runs.values()) - len(runs),
            "letters": len(letters),
        },
    )


def _lost(
    records: Sequence[RawRecord], runs: Mapping[Position, int], lettered: Mapping[Position, int]
) -> Iterator[str]:
    for record in records:
        position = _position(record)
        if position not in runs and position not in lettered:
            yield _place(position)


def _behind(records: Sequence[RawRecord], committed: Mapping[int, int]) -> Iterator[str]:
    ends: dict[int, int] = {}
    for record in records:
        ends[record.partition] = record.offset + 1
    for partition, end in sorted(ends.items()):
        if committed.get(partition, 0) < end:
            yield f"partition {partition} at {committed.get(partition)} of {end}"


def _not_expected(letters: Sequence[LetterRow], expected: set[Position]) -> Iterator[str]:
    for letter in letters:
        if letter.position not in expected:
            yield f"{_place(letter.position)} ({letter.error_class})"


def _inversions(records: Sequence[RawRecord], handled: Sequence[HandledRow]) -> Iterator[str]:
    keys = {_position(record): record.key for record in records}
    latest: dict[tuple[int, bytes | None], int] = {}
    seen: set[Position] = set()
    for row in handled:
        if row.position in seen:
            continue
        seen.add(row.position)
        key = (row.position.partition, keys.get(row.position))
        if row.position.offset < latest.get(key, -1):
            yield f"{_place(row.position)} after {latest[key]} (run {row.seq})"
        else:
            latest[key] = row.position.offset


class CommitWatch:
    """Looks at a group's committed offsets while it runs: each must have all its records behind it at that moment.

    A check afterwards cannot see an offset that was committed too early and whose record was handled in the end: only a
    crash in between would have shown it. Call `look` now and then, then `report`.
    """

    def __init__(self, *, books: Books, topic: str, fails: Callable[[int, int], bool]) -> None:
        """``fails`` says of partition and offset whether the record is to become a letter; those are not looked for."""
        self._books = books
        self._topic = topic
        self._fails = fails
        self._verified: dict[int, int] = {}
        self._early: list[str] = []
        self.looks = 0

    async def look(self, committed: Mapping[int, int]) -> None:
        """Judge these offsets, which were read before this call. Raises DatabaseError; look again then."""
        for partition, end in sorted(committed.items()):
            # An offset may go back: a member that was put out may have committed after all, or a group was reset.
            start = self._verified.get(partition, 0)
            if end <= start:
                continue
            done = await self._books.handled_between(self._topic, partition, start, end)
            self._early += [
                f"{self._topic}-{partition}@{offset} below the committed {end}"
                for offset in range(start, end)
                if offset not in done and not self._fails(partition, offset)
            ]
            self._verified[partition] = end
        self.looks += 1

    def report(self) -> Report:
        """What all looks found."""
        return Report(
            violations=found(4, "records were not handled when a later offset was committed", self._early),
            counts={"looks at committed offsets": self.looks},
        )


def _position(record: RawRecord) -> Position:
    return Position(record.topic, record.partition, record.offset)


def _place(position: Position) -> str:
    return f"{position.topic}-{position.partition}@{position.offset}"

"""Compares what was committed with what is in the topic: nothing lost, invented, reordered, repeated or changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from outboxd.ids import HEADER_ROW_ID, RESERVED_PREFIX, parse_row_identity
from outboxd.records import Headers, RawRecord
from outboxd.testing.chaos.books import WrittenRow
from outboxd.testing.chaos.report import Report, found
from outboxd.testing.chaos.writers import Fate, Ledger

__all__ = ["check_relay"]

_WRITTEN_HEADERS: Final = Headers([("origin", b"chaos"), ("twice", b"1"), ("twice", None)])


def check_relay(
    *,
    written: Mapping[int, WrittenRow],
    records: Sequence[RawRecord],
    pending: Sequence[int],
    ledger: Ledger | None = None,
    headers: Headers = _WRITTEN_HEADERS,
) -> Report:
    """Whether the topic holds what was committed, after the relay had the time to finish.

    ``written`` are the committed rows (`Books.written`), ``records`` the topics' records (`read_topic`), ``pending``
    the rows still in the outbox (`Books.pending`). With ``ledger`` the writers' own knowledge is compared, too.
    ``headers`` are what every row was written with; `Writers` write the default. Judges invariants 1, 2, 3 and 7.
    """
    copies = list(_copies(records))
    seen = Counter(row_id for row_id, _ in copies)
    waiting = frozenset(pending)
    absent = [row for row_id, row in written.items() if row_id not in seen]
    return Report(
        violations=[
            *found(1, "rows are marked and not in the topic", (row for row in absent if row.row_id not in waiting)),
            *found(2, "rows are still pending", (written.get(row_id, f"row {row_id}") for row_id in pending)),
            *found(2, "rows were committed, their writer was told so, and they are gone", _lost(ledger, written)),
            *found(3, "records are of rows that nobody committed", _invented(records, written)),
            *found(3, "records are repeats", _repeats(copies)),
            *found(3, "records stand before one of an earlier row of their key", _inversions(copies)),
            *found(3, "keys are in several partitions", _scattered(copies)),
            *found(7, "records are not what was written", _changed(copies, written, headers)),
        ],
        counts={
            "committed": len(written),
            "records": len(records),
            **({} if ledger is None else {f"rows {fate.value}": len(ledger.of(fate)) for fate in Fate}),
        },
    )


def _copies(records: Sequence[RawRecord]) -> Iterator[tuple[int, RawRecord]]:
    """Row id and record of every relayed record."""
    for record in records:
        identity = _identity(record)
        if identity is not None:
            yield identity[1], record


def _identity(record: RawRecord) -> tuple[UUID, int] | None:
    return parse_row_identity(record.headers.get(HEADER_ROW_ID))


def _lost(ledger: Ledger | None, written: Mapping[int, WrittenRow]) -> list[WrittenRow]:
    return [] if ledger is None else [row for row in ledger.of(Fate.COMMITTED) if row.row_id not in written]


def _invented(records: Sequence[RawRecord], written: Mapping[int, WrittenRow]) -> Iterator[str]:
    for record in records:
        identity = _identity(record)
        if identity is None or identity[1] not in written:
            yield _told(record)


def _repeats(copies: Sequence[tuple[int, RawRecord]]) -> Iterator[str]:
    first: dict[int, RawRecord] = {}
    for row_id, record in copies:
        if row_id in first:
            yield f"{_told(record)} after {_place(first[row_id])}"
        first.setdefault(row_id, record)


def _inversions(copies: Sequence[tuple[int, RawRecord]]) -> Iterator[str]:
    """First copies whose key has seen a later row already; records come in the order of their partition."""
    latest: dict[tuple[str, bytes | None], tuple[int, RawRecord]] = {}
    seen: set[int] = set()
    for row_id, record in copies:
        if row_id in seen:
            continue
        seen.add(row_id)
        key = (record.topic, record.key)
        if key in latest and row_id < latest[key][0]:
            yield f"{_told(latest[key][1])} before {_told(record)}"
        else:
            latest[key] = (row_id, record)


def _scattered(copies: Sequence[tuple[int, RawRecord]]) -> Iterator[str]:
    partitions: dict[tuple[str, bytes], set[int]] = {}
    for _, record in copies:
        if record.key is not None:
            partitions.setdefault((record.topic, record.key), set()).add(record.partition)
    for (topic, key), numbers in partitions.items():
        if len(numbers) > 1:
            yield f"{key!r} of {topic}: {sorted(numbers)}"


def _changed(
    copies: Sequence[tuple[int, RawRecord]], written: Mapping[int, WrittenRow], headers: Headers
) -> Iterator[str]:
    for row_id, record in copies:
        row = written.get(row_id)
        if row is None:
            continue
        is_equal = (
            record.topic == row.topic
            and record.key == row.key.encode()
            and record.value == row.payload.encode()
            and record.headers.without(RESERVED_PREFIX) == headers
        )
        if not is_equal:
            yield _told(record)


def _place(record: RawRecord) -> str:
    return f"{record.topic}-{record.partition}@{record.offset}"


def _told(record: RawRecord) -> str:
    identity = _identity(record)
    row = "without a row's identity" if identity is None else f"row {identity[1]}"
    return f"{row} at {_place(record)}"

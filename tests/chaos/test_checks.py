"""The checks see what they are for: each planted fault is named with its invariant and its rows."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from outboxd.ids import row_identity
from outboxd.records import Header, Headers, Position, RawRecord, TimestampType
from outboxd.testing.chaos import (
    Fate,
    HandledRow,
    Ledger,
    LetterRow,
    Report,
    WrittenRow,
    check_consumer,
    check_relay,
)

RELAY = UUID(int=7)
HEADERS: list[Header] = [("origin", b"chaos"), ("twice", b"1"), ("twice", None)]


def _row(row_id: int, key: str = "a") -> WrittenRow:
    return WrittenRow(row_id=row_id, topic="t", key=key, payload=f"payload {row_id}")


def _record(
    row_id: int,
    offset: int,
    *,
    key: str = "a",
    partition: int = 0,
    value: bytes | None = None,
    headers: list[Header] | None = None,
    is_relayed: bool = True,
) -> RawRecord:
    identity: list[Header] = [("outboxd-id", row_identity(RELAY, row_id).encode())] if is_relayed else []
    return RawRecord(
        topic="t",
        partition=partition,
        offset=offset,
        timestamp=0,
        timestamp_type=TimestampType.CREATE_TIME,
        key=key.encode(),
        value=f"payload {row_id}".encode() if value is None else value,
        headers=Headers([*(HEADERS if headers is None else headers), *identity]),
    )


def _relay(
    *records: RawRecord, written: tuple[int, ...] = (1, 2), pending: tuple[int, ...] = (), ledger: Ledger | None = None
) -> Report:
    return check_relay(
        written={row_id: _row(row_id) for row_id in written}, records=records, pending=pending, ledger=ledger
    )


def _broken(report: Report) -> list[int]:
    return [violation.invariant for violation in report.violations]


def test_a_topic_that_holds_what_was_committed_passes() -> None:
    ledger = Ledger()
    ledger.note({1: _row(1)}, Fate.COMMITTED)
    ledger.note({2: _row(2)}, Fate.UNKNOWN)
    ledger.note({3: _row(3)}, Fate.ROLLED_BACK)
    report = _relay(_record(1, 0), _record(2, 1), ledger=ledger)
    assert report.holds
    assert report.counts["rows unknown"] == 1
    assert str(report).startswith("every invariant holds")


@pytest.mark.parametrize(
    ("records", "pending", "invariants", "named"),
    [
        ([_record(1, 0)], (), [1], "row 2 (t, a)"),
        ([_record(1, 0)], (2,), [2], "row 2 (t, a)"),
        ([_record(1, 0), _record(2, 1), _record(3, 2)], (), [3], "row 3 at t-0@2"),
        ([_record(1, 0), _record(2, 1), _record(9, 2, is_relayed=False)], (), [3], "without a row's identity at t-0@2"),
        ([_record(1, 0), _record(2, 1), _record(1, 2)], (), [3], "row 1 at t-0@2 after t-0@0"),
        ([_record(2, 0), _record(1, 1)], (), [3], "row 2 at t-0@0 before row 1 at t-0@1"),
        ([_record(1, 0), _record(2, 0, partition=1)], (), [3], "b'a' of t: [0, 1]"),
        ([_record(1, 0), _record(2, 1, value=b"other")], (), [7], "row 2 at t-0@1"),
        ([_record(1, 0), _record(2, 1, headers=HEADERS[:2])], (), [7], "row 2 at t-0@1"),
        ([_record(1, 0), _record(2, 1, headers=HEADERS[::-1])], (), [7], "row 2 at t-0@1"),
    ],
    ids=["lost", "pending", "invented", "foreign", "repeated", "reordered", "scattered", "value", "null", "order"],
)
def test_what_is_wrong_in_a_topic_is_named(
    records: list[RawRecord], pending: tuple[int, ...], invariants: list[int], named: str
) -> None:
    report = _relay(*records, pending=pending)
    assert _broken(report) == invariants
    assert named in str(report)


def test_a_row_that_its_writer_was_told_is_committed_must_be_there() -> None:
    ledger = Ledger()
    ledger.note({3: _row(3)}, Fate.COMMITTED)
    report = _relay(_record(1, 0), _record(2, 1), ledger=ledger)
    assert _broken(report) == [2]
    assert "row 3" in str(report)


def test_keys_of_other_topics_and_keys_are_orders_of_their_own() -> None:
    report = check_relay(
        written={1: _row(1, "a"), 2: _row(2, "b")},
        records=[_record(2, 0, key="b"), _record(1, 1, key="a")],
        pending=(),
    )
    assert report.holds


# -- consumer ------------------------------------------------------------------------------------------------------------


def _handled(*offsets: int) -> list[HandledRow]:
    return [HandledRow(seq=seq, position=Position("t", 0, offset)) for seq, offset in enumerate(offsets)]


def _letters(*offsets: int) -> list[LetterRow]:
    return [LetterRow(id=uuid4(), position=Position("t", 0, offset), error_class="E") for offset in offsets]


def _consumer(handled: list[HandledRow], letters: list[LetterRow], committed: int | None = 3) -> Report:
    """Three records of one key, the middle one refused for good."""
    return check_consumer(
        records=[_record(number, number) for number in range(3)],
        handled=handled,
        letters=letters,
        committed={} if committed is None else {0: committed},
        fails=lambda record: record.offset == 1,
    )


def test_a_record_may_be_handled_twice() -> None:
    report = _consumer(_handled(0, 2, 0, 2), _letters(1))
    assert report.holds, report
    assert report.counts["handled again"] == 2


@pytest.mark.parametrize(
    ("handled", "letters", "committed", "invariants"),
    [
        ([0], [1], 3, [4]),
        ([0, 2], [], 3, [4]),
        ([0, 2], [1], 2, [4]),
        ([0, 2], [1], None, [4]),
        ([0, 2, 7], [1], 3, [4]),
        ([0, 1, 2], [1], 3, [4]),
        ([0, 2], [1, 2], 3, [5]),
        ([0, 2], [1, 1], 3, [6]),
        ([2, 0], [1], 3, [3]),
    ],
    ids=[
        "not handled",
        "no letter",
        "not committed",
        "never committed",
        "from nowhere",
        "refused and handled",
        "a letter too many",
        "two letters",
        "reordered",
    ],
)
def test_what_is_wrong_with_a_consumer_is_named(
    handled: list[int], letters: list[int], committed: int | None, invariants: list[int]
) -> None:
    assert _broken(_consumer(_handled(*handled), _letters(*letters), committed)) == invariants


def test_a_long_list_of_rows_is_cut_and_counted() -> None:
    report = _relay(written=tuple(range(1, 31)))
    (violation,) = report.violations
    assert len(violation.rows) == 30
    assert "and 20 more" in str(violation)

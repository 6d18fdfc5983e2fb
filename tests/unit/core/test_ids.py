"""Identities are derived: equal things get equal ids, and nothing else does."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from outboxd.ids import (
    content_hash,
    drain_lease,
    idempotency_id,
    parse_row_identity,
    record_letter_id,
    row_identity,
    row_letter_id,
    shard_lease,
    transactional_id,
)
from outboxd.records import OutboxRow, RawRecord, TimestampType

RELAY = UUID("00000000-0000-4000-8000-000000000001")
RECORD = RawRecord(
    topic="t",
    partition=1,
    offset=7,
    timestamp=1000,
    timestamp_type=TimestampType.CREATE_TIME,
    key=b"k",
    value=b"v",
)


@given(st.uuids(), st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_a_row_identity_is_read_back(relay_id: UUID, row_id: int) -> None:
    assert parse_row_identity(row_identity(relay_id, row_id).encode()) == (relay_id, row_id)


@given(st.one_of(st.none(), st.binary(max_size=60)))
def test_a_foreign_header_is_no_row_identity_and_no_error(value: bytes | None) -> None:
    parsed = parse_row_identity(value)
    assert parsed is None or isinstance(parsed[1], int)


def test_names_have_the_published_forms() -> None:
    assert transactional_id(RELAY, 3) == f"outboxd.{RELAY}.3"
    assert shard_lease(RELAY, 3) == f"relay:{RELAY}:3"
    assert drain_lease("orders", "topic") == "drain:orders:topic"
    assert drain_lease("orders", "spool", "pod-1") == "drain:orders:spool:pod-1"


def test_a_letter_of_a_record_has_the_same_id_each_time_and_another_for_anything_else() -> None:
    one = record_letter_id("cluster", "group", RECORD)
    assert one == record_letter_id("cluster", "group", replace(RECORD))
    others = [
        record_letter_id("other", "group", RECORD),
        record_letter_id("cluster", "other", RECORD),
        *(
            record_letter_id("cluster", "group", changed)
            for changed in (
                replace(RECORD, topic="u"),
                replace(RECORD, partition=2),
                replace(RECORD, offset=8),
                replace(RECORD, timestamp=1001),
                replace(RECORD, key=None),
                replace(RECORD, value=b""),
            )
        ),
    ]
    assert len({one, *others}) == len(others) + 1


def test_parts_of_an_id_cannot_run_into_each_other() -> None:
    assert record_letter_id("a", "bc", RECORD) != record_letter_id("ab", "c", RECORD)


def test_null_and_empty_are_different_content() -> None:
    contents = {content_hash(key, value) for key in (None, b"", b"a") for value in (None, b"", b"a")}
    assert len(contents) == 9
    assert content_hash(b"a", b"bc") != content_hash(b"ab", b"c")


def test_the_letter_of_a_row_follows_its_identity_and_content() -> None:
    row = OutboxRow(row_id=1, shard=0, topic="t", key=b"k", value=b"v")
    one = row_letter_id("cluster", "relay", row, row_identity(RELAY, 1))
    assert one == row_letter_id("cluster", "relay", replace(row, shard=5), row_identity(RELAY, 1))
    assert one != row_letter_id("cluster", "relay", replace(row, value=b"w"), row_identity(RELAY, 1))


def test_an_action_has_an_id_of_its_own_for_each_row() -> None:
    ids = {idempotency_id(RELAY, row, action) for row in range(3) for action in range(3)}
    assert len(ids) == 9
    assert idempotency_id(RELAY, 1, 2) == idempotency_id(RELAY, 1, 2)

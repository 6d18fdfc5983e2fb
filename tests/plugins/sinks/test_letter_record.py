from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxd import ids
from outboxd.api import Headers, Letter, RawRecord, Stage, TimestampType
from outboxd_plugins.sinks import letter_record
from outboxd_plugins.sinks.letter_json import LetterUnreadable
from outboxd_plugins.sinks.letter_record import OURS_LIMIT, RESERVED_PREFIXES, letter_of, record_of
from tests.plugins.sinks.doubles import a_letter, letters

# What Kafka Connect wrote for this record (JsonConverter, errors.deadletterqueue.context.headers.enable=true).
CONNECT = [
    ("app", b"1"),
    ("app", b"2"),
    ("bin", b"\xc3("),
    ("nul", None),
    ("__connect.errors.topic", b"src"),
    ("__connect.errors.partition", b"1"),
    ("__connect.errors.offset", b"0"),
    ("__connect.errors.connector.name", b"s"),
    ("__connect.errors.task.id", b"0"),
    ("__connect.errors.stage", b"VALUE_CONVERTER"),
    ("__connect.errors.class.name", b"org.apache.kafka.connect.json.JsonConverter"),
    ("__connect.errors.exception.class.name", b"org.apache.kafka.connect.errors.DataException"),
    (
        "__connect.errors.exception.message",
        b"Converting byte[] to Kafka Connect data failed due to serialization error: ",
    ),
    ("__connect.errors.exception.stacktrace", b"org.apache.kafka.connect.errors.DataException: ...\n\tat ...\n"),
]


def published(letter: Letter, dialects: tuple[str, ...] = ("connect",), room: int | None = None) -> RawRecord:
    """The record of a letter as a consumer of the dead-letter topic sees it."""
    record = record_of(letter, dialects, room)
    return RawRecord(
        topic="src.dlq",
        partition=0,
        offset=17,
        timestamp=1_900_000_000_000 if record.timestamp is None else record.timestamp,
        timestamp_type=TimestampType.CREATE_TIME,
        key=record.key,
        value=record.value,
        headers=record.headers,
    )


def ours(record: RawRecord) -> int:
    return sum(len(name) + len(value or b"") for name, value in record.headers if name.startswith(RESERVED_PREFIXES))


def test_names_order_and_encodings_of_the_headers_are_those_of_connect() -> None:
    record = record_of(a_letter(), ["connect"])
    assert list(record.headers[: len(CONNECT)]) == CONNECT
    assert [name for name, _ in record.headers[len(CONNECT) :]] == ["outboxd-letter-id", "outboxd-letter"]
    assert (record.key, record.value, record.timestamp) == (b"\x83\xffk", b"{not json", 1_700_000_000_000)


@pytest.mark.parametrize(("stage", "expected"), [(Stage.DECODE, b"VALUE_CONVERTER"), (Stage.HANDLE, b"TASK_PUT")])
def test_stages_have_connects_names(stage: Stage, expected: bytes) -> None:
    assert record_of(a_letter(stage=stage), ["connect"]).headers.get("__connect.errors.stage") == expected


def test_the_names_are_those_of_the_core() -> None:
    assert (ids.HEADER_LETTER_ID, ids.HEADER_LETTER) == (letter_record._LETTER_ID, letter_record._LETTER)
    assert ids.RESERVED_PREFIX in RESERVED_PREFIXES


@given(letter=letters, dialects=st.sampled_from([(), ("connect",)]))
def test_a_letter_read_back_is_the_letter_written(letter: Letter, dialects: tuple[str, ...]) -> None:
    assert letter_of(published(letter, dialects)) == letter


@given(letter=letters)
def test_headers_of_the_application_are_untouched_and_reserved_ones_never_doubled(letter: Letter) -> None:
    record = record_of(letter, ["connect"])
    names = [name for name, _ in record.headers]
    for name, _ in record.headers:
        name.encode("utf-8")
    assert names.count("outboxd-letter") == names.count("outboxd-letter-id") == 1
    assert names.count("__connect.errors.topic") == 1
    plain = [header for header in letter.headers if header in record.headers.without(*RESERVED_PREFIXES)]
    assert list(record.headers.without(*RESERVED_PREFIXES)) == plain


@pytest.mark.fixes("B050")
def test_counters_and_traces_of_the_application_survive_and_a_letter_does_not_grow() -> None:
    headers = Headers((("retryCount", b"1"), ("traceparent", b"00-1-2-03"), ("outboxd-id", b"r:1"), ("app", None)))
    letter = a_letter(headers=headers)
    sizes = set()
    for _ in range(20):
        record = published(letter)
        assert record.headers.get("retryCount") == b"1"
        letter = letter_of(record)
        assert letter.headers == headers
        sizes.add(sum(len(name) + len(value or b"") for name, value in record.headers))
    assert len(sizes) == 1


@pytest.mark.fixes("B042")
@pytest.mark.parametrize("dialects", [(), ("connect",)])
def test_our_headers_take_at_most_16_kib_the_traceback_is_cut_before_the_message(dialects: tuple[str, ...]) -> None:
    letter = a_letter(error_message="m" * 8192, error_traceback="t" * 32_000 + "the end")
    record = published(letter, dialects)
    assert OURS_LIMIT - 100 < ours(record) <= OURS_LIMIT
    back = letter_of(record)
    assert back.error_message == letter.error_message
    assert back.error_traceback.startswith("... (cut) ...")
    assert back.error_traceback.endswith("the end")
    assert replace(back, error_traceback="") == replace(letter, error_traceback="")


@pytest.mark.parametrize("dialects", [(), ("connect",)])
@pytest.mark.parametrize("text", ["ü", "\x01", "日本"])
def test_escapes_count_too(dialects: tuple[str, ...], text: str) -> None:
    letter = a_letter(error_message=text * 2700, error_traceback=text * 10_000)
    assert ours(published(letter, dialects)) <= OURS_LIMIT


def test_headers_that_the_application_has_are_not_cut_for_ours() -> None:
    headers = Headers((("outboxd-id", b"x" * 50_000), ("app", b"y" * 50_000)))
    assert letter_of(published(a_letter(headers=headers))).headers == headers


@given(room=st.integers(0, 60_000))
def test_our_headers_are_cut_further_where_the_topic_has_less_room(room: int) -> None:
    letter = a_letter(value=b"v" * 20_000, error_message="m" * 8000, error_traceback="t" * 30_000)
    record = published(letter, room=room)
    size = ours(record) + len(record.value or b"") + len(record.key or b"")
    smallest = published(letter, room=0)
    assert size <= max(room, ours(smallest) + 20_003)
    assert replace(letter_of(record), error_message="", error_traceback="") == replace(
        letter, error_message="", error_traceback=""
    )


@pytest.mark.fixes("B043")
@pytest.mark.parametrize(
    "headers",
    [
        (),
        CONNECT,
        (("outboxd-letter-id", b"00000000-0000-0000-0000-000000000001"),),
        (("outboxd-letter", b"{}"),),
        (("outboxd-letter-id", b"no uuid"), ("outboxd-letter", b"{}")),
        (("outboxd-letter-id", None), ("outboxd-letter", None)),
        (("outboxd-letter-id", b"\xff"), ("outboxd-letter", b"\xff")),
        (("outboxd-letter-id", b"00000000-0000-0000-0000-000000000001"), ("outboxd-letter", b"[1]")),
        (("outboxd-letter-id", b"00000000-0000-0000-0000-000000000001"), ("outboxd-letter", b"[" * 100_000)),
        (("outboxd-letter-id", b"00000000-0000-0000-0000-000000000001"), ("outboxd-letter", b"{}")),
    ],
)
def test_foreign_records_are_told_apart(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    record = replace(published(a_letter()), headers=Headers(headers))
    with pytest.raises(LetterUnreadable):
        letter_of(record)


@pytest.mark.fixes("B043")
@pytest.mark.parametrize(
    "changes",
    [
        {"v": 99},
        {"offset": "abc"},
        {"stage": "unknown"},
        {"first_failed_at": "yesterday"},
        {"reserved": 5},
        {"reserved": [[0, "name"]]},
        {"reserved": [["x", "name", None]]},
        {"reserved": [[0, "outboxd-id", "not base64!"]]},
    ],
)
def test_a_damaged_letter_is_told_apart(changes: dict[str, object]) -> None:
    record = published(a_letter())
    data = json.loads(record.headers.get("outboxd-letter") or b"") | changes
    damaged = Headers((*record.headers[:-1], ("outboxd-letter", json.dumps(data).encode())))
    with pytest.raises(LetterUnreadable):
        letter_of(replace(record, headers=damaged))

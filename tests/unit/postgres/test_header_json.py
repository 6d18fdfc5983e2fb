"""Headers between JSON and bytes (invariant 7)."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outboxd.postgres.header_json import letter_headers, letter_headers_json, outbox_headers
from outboxd.records import NO_HEADERS, Headers

NAMES = st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("base64"), inner, max_size=3),
)


@settings(deadline=None)  # the machine may be busy; nothing here is about time
@given(st.lists(st.tuples(NAMES, st.none() | st.binary())))
def test_headers_of_a_letter_survive_its_json(pairs: list[tuple[str, bytes | None]]) -> None:
    stored = letter_headers_json(Headers(pairs))
    assert "\\u0000" not in stored
    assert letter_headers(stored) == Headers(pairs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, []),
        ("null", []),
        ("{}", []),
        ('{"a": "1", "b": null, "c": ""}', [("a", b"1"), ("b", None), ("c", b"")]),
        (
            '[["a", "1"], ["a", {"base64": "AP8="}], ["a", "\u00e9"]]',
            [("a", b"1"), ("a", b"\x00\xff"), ("a", b"\xc3\xa9")],
        ),
    ],
)
def test_headers_of_a_row_keep_order_repeats_and_nulls(
    text: str | None, expected: list[tuple[str, bytes | None]]
) -> None:
    assert outbox_headers(text) == Headers(expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1}', "'a'"),
        ('{"a": true}', "'a'"),
        ('{"a": {"base64": "AA==", "more": 1}}', "'a'"),
        ('{"a": {"base64": "A"}}', "base64"),
        ('["a", "b"]', "pair"),
        ('[["a", "b", "c"]]', "pair"),
        ('[[1, "b"]]', "pair"),
        ('"a"', "object"),
        ('{"a": "\\ud800"}', "surrogates"),
    ],
)
def test_headers_that_cannot_be_read_say_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        outbox_headers(text)


@settings(deadline=None)
@given(JSON)
def test_any_json_gives_headers_or_a_reason(value: object) -> None:
    try:
        found = outbox_headers(json.dumps(value))
    except ValueError as error:
        assert str(error)  # noqa: PT017 -- either outcome may be right here
    else:
        assert found == NO_HEADERS or isinstance(value, dict | list)

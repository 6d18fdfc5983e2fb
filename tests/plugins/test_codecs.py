"""The first-party codecs: what they give, and that everything they cannot read is Undecodable."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxd.api import Codec, PluginContext, PluginSettings, RawRecord, TimestampType
from outboxd.errors import Undecodable
from outboxd_plugins.codecs.json import JsonCodec
from outboxd_plugins.codecs.raw import RawCodec
from outboxd_plugins.codecs.text import TextCodec

CONTEXT = cast("PluginContext", object())


def decode(kind: type[RawCodec | TextCodec | JsonCodec], raw: bytes | None) -> object:
    codec = kind(PluginSettings(), CONTEXT)
    assert isinstance(codec, Codec)
    record = RawRecord(
        topic="t", partition=0, offset=0, timestamp=-1, timestamp_type=TimestampType.NONE, key=None, value=raw
    )
    return codec.decode(raw, record)


@given(st.one_of(st.none(), st.binary()))
def test_raw_gives_the_bytes_themselves(raw: bytes | None) -> None:
    assert decode(RawCodec, raw) is raw


@pytest.mark.parametrize("kind", [RawCodec, TextCodec, JsonCodec])
def test_a_tombstone_is_none(kind: type[RawCodec | TextCodec | JsonCodec]) -> None:
    assert decode(kind, None) is None


@given(st.text())
def test_text_is_utf8(text: str) -> None:
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    assert decode(TextCodec, raw) == text


def test_integers_stay_exact() -> None:
    assert decode(JsonCodec, b'{"n": 12345678901234567890123}') == {"n": 12345678901234567890123}


@pytest.mark.parametrize(
    "raw",
    [b"", b"{not json", b"\xff\xfe\xff", b"\x83", b"[" * 200_000, b"9" * 5000, b'{"a": 1} x'],
    ids=["empty", "not json", "bad utf-16", "not utf-8", "too deep", "too long a number", "something behind"],
)
def test_whatever_json_cannot_read_is_undecodable(raw: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(JsonCodec, raw)


def test_text_that_is_not_utf8_is_undecodable_and_says_where() -> None:
    with pytest.raises(Undecodable, match="byte 2 of 3"):
        decode(TextCodec, b"ab\xff")

"""The entries of a spool: one line each, `<version> <CRC-32 of the JSON, 8 hex digits> <JSON of the letter>`.

A line is whole when it ends in a newline and its CRC fits. What was torn by a crash has no newline; a damaged line costs
itself only, since the next newline begins the next entry.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from outboxd.api import Letter
from outboxd_plugins.sinks.letter_json import (
    VERSION,
    LetterUnreadable,
    bytes_to_text,
    facts_of,
    headers_from_json,
    headers_to_json,
    letter_from,
    parse_facts,
    text_to_bytes,
)

__all__ = ["Damaged", "Entry", "decode_line", "encode_letter", "entries"]

_NEWLINE: Final = b"\n"


@dataclass(frozen=True, slots=True)
class Entry:
    """A letter, and the offset of the byte after its line."""

    letter: Letter
    end: int


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that is no entry, why, and the offset of the byte after it."""

    line: bytes
    reason: str
    end: int


def encode_letter(letter: Letter) -> bytes:
    """The line of a letter."""
    data = facts_of(letter).model_dump(mode="json") | {
        "key": bytes_to_text(letter.key),
        "value": bytes_to_text(letter.value),
        "headers": headers_to_json(letter.headers),
    }
    body = json.dumps(data, separators=(",", ":")).encode("ascii")
    return b"%d %08x %s\n" % (VERSION, zlib.crc32(body), body)


def decode_line(line: bytes) -> Letter:
    """The letter of a line, without its newline. Raises LetterUnreadable."""
    version, _, rest = line.partition(b" ")
    crc, _, body = rest.partition(b" ")
    if version != b"%d" % VERSION:
        raise LetterUnreadable(f"it does not begin with version {VERSION}")
    if crc != b"%08x" % zlib.crc32(body):
        raise LetterUnreadable("its CRC does not fit")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise LetterUnreadable("it is not JSON") from error
    if not isinstance(data, dict):
        raise LetterUnreadable("it is not an object")
    headers = headers_from_json(data.pop("headers", None))
    key, value = text_to_bytes(data.pop("key", None)), text_to_bytes(data.pop("value", None))
    return letter_from(parse_facts(data), key=key, value=value, headers=headers)


def entries(chunk: bytes, offset: int) -> Iterator[Entry | Damaged]:
    """The whole lines of a piece of a segment that begins at ``offset``, at the start of a line."""
    start = 0
    while (newline := chunk.find(_NEWLINE, start)) >= 0:
        end = offset + newline + 1
        try:
            yield Entry(decode_line(chunk[start:newline]), end)
        except LetterUnreadable as error:
            yield Damaged(chunk[start : newline + 1], str(error), end)
        start = newline + 1

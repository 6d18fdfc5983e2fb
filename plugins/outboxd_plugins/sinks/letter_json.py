"""A letter as versioned JSON text, and back: the same letter, byte for byte."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from outboxd.api import NO_HEADERS, Headers, Letter, Stage, TimestampType

__all__ = [
    "VERSION",
    "LetterFacts",
    "LetterUnreadable",
    "bytes_to_text",
    "facts_of",
    "headers_from_json",
    "headers_to_json",
    "letter_from",
    "parse_facts",
    "text_to_bytes",
]

VERSION: Final = 1
"""Of the JSON: readers refuse any other."""


class LetterUnreadable(ValueError):
    """The JSON is not that of a letter, or of a version that this release does not know."""


class LetterFacts(BaseModel):
    """All of a letter but the record's key, value and headers; they travel beside it.

    ``error_message`` and ``error_traceback`` are None where they travel elsewhere too.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    v: Literal[1] = VERSION
    id: UUID
    pipeline: str
    group: str | None
    handler: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    stage: Stage
    error_class: str
    error_root_class: str
    error_message: str | None
    error_traceback: str | None
    attempts: int
    first_failed_at: AwareDatetime
    last_failed_at: AwareDatetime
    rule: str
    fingerprint: str
    traceparent: str | None = None
    outbox_id: str | None = None


_FIELDS: Final = tuple(name for name in LetterFacts.model_fields if name != "v")


def facts_of(letter: Letter) -> LetterFacts:
    """The letter without key, value and headers."""
    return LetterFacts.model_construct(v=VERSION, **{name: getattr(letter, name) for name in _FIELDS})


def parse_facts(data: object) -> LetterFacts:
    """Facts from what ``json.loads`` gave. Raises LetterUnreadable."""
    try:
        return LetterFacts.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise LetterUnreadable(f"not a letter of version {VERSION}: {place}: {first['msg']}") from error


def letter_from(facts: LetterFacts, *, key: bytes | None, value: bytes | None, headers: Headers) -> Letter:
    """The letter with these facts and this record."""
    fields = {name: getattr(facts, name) for name in _FIELDS}
    fields |= {"error_message": facts.error_message or "", "error_traceback": facts.error_traceback or ""}
    return replace(Letter(**fields, key=None, value=None, headers=NO_HEADERS), key=key, value=value, headers=headers)


def headers_to_json(headers: Iterable[tuple[str, bytes | None]]) -> list[list[str | None]]:
    """Headers in order as `[[name, base64 or null], ...]`."""
    return [[name, bytes_to_text(value)] for name, value in headers]


def headers_from_json(data: object) -> Headers:
    """The headers again. Raises LetterUnreadable."""
    if not isinstance(data, list):
        raise LetterUnreadable("headers are not a list")
    headers = []
    for pair in data:
        if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise LetterUnreadable("a header is not a pair of name and value")
        headers.append((pair[0], text_to_bytes(pair[1])))
    return Headers(headers)


def bytes_to_text(raw: bytes | None) -> str | None:
    """Base64; None stays None, and empty stays empty."""
    return None if raw is None else base64.b64encode(raw).decode("ascii")


def text_to_bytes(text: object) -> bytes | None:
    """What `bytes_to_text` was given. Raises LetterUnreadable."""
    if text is None:
        return None
    if not isinstance(text, str):
        raise LetterUnreadable("bytes are not base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise LetterUnreadable("bytes are not base64 text") from error

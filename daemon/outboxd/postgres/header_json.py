"""Headers between jsonb and bytes, for outbox rows and for letters at home (invariant 7).

An outbox row has `{"name": value}` or `[["name", value], ...]` with strings, null or `{"base64": "..."}`; a letter
has `[[name, base64 or null], ...]`, a name that is not text as `{"base64": "..."}`.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable

from outboxd.records import NO_HEADERS, Headers

__all__ = ["letter_headers", "letter_headers_json", "outbox_headers"]


def outbox_headers(text: str | None) -> Headers:
    """The headers of an outbox row. Raises ValueError that says what is wrong with them."""
    if text is None:
        return NO_HEADERS
    match json.loads(text):
        case dict() as pairs:
            return Headers((name, _outbox_value(name, value)) for name, value in pairs.items())
        case list() as pairs:
            return Headers(_outbox_pair(pair) for pair in pairs)
        case None:
            return NO_HEADERS
        case other:
            raise ValueError(f"headers are {other!r:.40}, not an object or an array of pairs")


def _outbox_pair(pair: object) -> tuple[str, bytes | None]:
    match pair:
        case [str() as name, value]:
            return name, _outbox_value(name, value)
        case _:
            raise ValueError(f"headers have an element {pair!r:.40} that is not a pair [name, value]")


def _outbox_value(name: str, value: object) -> bytes | None:
    match value:
        case str():
            return value.encode()
        case None:
            return None
        case {"base64": str() as encoded, **rest} if not rest:
            try:
                return base64.b64decode(encoded, validate=True)
            except binascii.Error as error:
                raise ValueError(f"header {name!r} has a value that is not base64: {error}") from error
        case _:
            raise ValueError(f"header {name!r} has the value {value!r:.40}, not a string, null or base64")


def letter_headers_json(headers: Headers) -> str:
    """A letter's headers as the JSON that its home keeps."""
    return json.dumps([[_letter_name(name), None if value is None else _base64(value)] for name, value in headers])


def letter_headers(text: str) -> Headers:
    """A letter's headers from what its home keeps."""
    pairs: Iterable[tuple[object, str | None]] = json.loads(text)
    return Headers((_name(name), None if value is None else base64.b64decode(value)) for name, value in pairs)


def _letter_name(name: str) -> object:
    # jsonb has neither NUL nor lone surrogates; the latter stand for bytes that are not UTF-8.
    if "\x00" not in name and not any("\ud800" <= character <= "\udfff" for character in name):
        return name
    return {"base64": _base64(name.encode("utf-8", "surrogateescape"))}


def _name(stored: object) -> str:
    match stored:
        case str():
            return stored
        case {"base64": str() as encoded}:
            return base64.b64decode(encoded).decode("utf-8", "surrogateescape")
        case _:
            raise ValueError(f"a header's name is {stored!r:.40}")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")

"""A letter as a record of a dead-letter topic, and back.

Key, value, timestamp and the application's headers are those of the failed record, untouched (invariant 7). Behind the
headers stand those of the dialect, named, ordered and encoded as Kafka Connect's `DeadLetterQueueReporter` writes them
(KIP-298), then our own two: `outboxd-letter-id`, and `outboxd-letter`, the rest of the letter as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from outboxd.api import Headers, Letter, RawRecord, Stage
from outboxd_plugins.sinks.letter_json import (
    LetterUnreadable,
    facts_of,
    headers_from_json,
    headers_to_json,
    letter_from,
    parse_facts,
)

__all__ = ["OURS_LIMIT", "RESERVED_PREFIXES", "LetterRecord", "letter_of", "record_of"]

OURS_LIMIT: Final = 16 * 1024
"""The most that the headers written here add to a record, in bytes of names and values; a topic for dead letters needs
that much more room than the topics whose letters it takes."""
RESERVED_PREFIXES: Final = ("outboxd-", "__connect.errors.", "kafka_dlt-")
"""An application's own headers under these travel inside `outboxd-letter` and are back when the letter is read."""

_LETTER_ID: Final = "outboxd-letter-id"
_LETTER: Final = "outboxd-letter"
_MESSAGE: Final = "__connect.errors.exception.message"
_STACKTRACE: Final = "__connect.errors.exception.stacktrace"
_CONNECT_STAGES: Final = {
    Stage.FETCH: "VALUE_CONVERTER",
    Stage.DECODE: "VALUE_CONVERTER",
    Stage.HANDLE: "TASK_PUT",
    Stage.PUBLISH: "KAFKA_PRODUCE",
    Stage.ACTION: "TASK_PUT",
}
_CUT: Final = "... (cut) ..."
_PER_RECORD: Final = 61 + 31
"""A batch's header and a record's fixed fields at their longest (KIP-98, message format 2)."""
_PER_HEADER: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterRecord:
    """What to publish for a letter; ``timestamp`` is None for a record that had none."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int | None


def record_of(letter: Letter, dialects: Sequence[str], room: int | None = None) -> LetterRecord:
    """The record of a letter.

    Our headers are cut to `OURS_LIMIT`, and to what is left of ``room`` (bytes of a batch; None when unknown): first the
    traceback, then the message. What the record itself needs is never cut, so it may still be too large.
    """
    application = Headers(header for header in letter.headers if not _is_carried(header[0]))
    carried = [[index, *headers_to_json([header])[0]] for index, header in _carried(letter.headers)]
    limit = OURS_LIMIT
    if room is not None:
        limit = min(limit, room - _size(letter, application) - len(json.dumps(carried)))
    fitted = _fitted(letter, dialects, limit)
    return LetterRecord(
        key=letter.key,
        value=letter.value,
        headers=Headers((*application, *_ours(fitted, dialects, carried))),
        timestamp=letter.timestamp if letter.timestamp >= 0 else None,
    )


def letter_of(record: RawRecord) -> Letter:
    """The letter that `record_of` was given, less what had to be cut. Raises LetterUnreadable for any other record."""
    raw = record.headers.get(_LETTER)
    letter_id = record.headers.get(_LETTER_ID)
    if raw is None or letter_id is None:
        raise LetterUnreadable(f"it has no header {_LETTER if raw is None else _LETTER_ID}")
    try:
        data = json.loads(raw)
        identity = UUID(letter_id.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise LetterUnreadable(f"its header {_LETTER} or {_LETTER_ID} is damaged") from error
    if not isinstance(data, dict):
        raise LetterUnreadable(f"its header {_LETTER} is not an object")
    application = [header for header in record.headers if not _is_carried(header[0])]
    headers = _put_back(application, data.pop("reserved", []))
    facts = parse_facts(
        {"error_message": _text(record, _MESSAGE), "error_traceback": _text(record, _STACKTRACE)}
        | data
        | {"id": identity}
    )
    return letter_from(facts, key=record.key, value=record.value, headers=headers)


def _ours(letter: Letter, dialects: Sequence[str], carried: Sequence[object]) -> Headers:
    headers: list[tuple[str, bytes]] = []
    facts = facts_of(letter).model_dump(mode="json", exclude={"id"})
    if "connect" in dialects:
        headers += _connect(letter)
        del facts["error_message"], facts["error_traceback"]
    if carried:
        facts["reserved"] = carried
    headers.append((_LETTER_ID, str(letter.id).encode("ascii")))
    headers.append((_LETTER, json.dumps(facts, separators=(",", ":")).encode("ascii")))
    return Headers(headers)


def _connect(letter: Letter) -> Sequence[tuple[str, bytes]]:
    values = {
        "topic": letter.topic,
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "connector.name": letter.pipeline,
        "task.id": "0",
        "stage": _CONNECT_STAGES[letter.stage],
        "class.name": letter.handler,
        "exception.class.name": letter.error_class,
        "exception.message": letter.error_message,
        "exception.stacktrace": letter.error_traceback,
    }
    return [(f"__connect.errors.{name}", value.encode("utf-8", "replace")) for name, value in values.items()]


def _fitted(letter: Letter, dialects: Sequence[str], limit: int) -> Letter:
    """The letter with its texts cut until our headers take ``limit`` bytes, as far as that goes.

    Of a traceback the end says most, of a message its start. Escapes only make a text longer in JSON, so cutting as many
    bytes as there are too many is enough.
    """
    over = _length(_ours(letter, dialects, ())) - limit
    if over > 0:
        letter = replace(letter, error_traceback=_shortened(letter.error_traceback, over, keeps_end=True))
        over = _length(_ours(letter, dialects, ())) - limit
    if over > 0:
        letter = replace(letter, error_message=_shortened(letter.error_message, over, keeps_end=False))
    return letter


def _shortened(text: str, over: int, *, keeps_end: bool) -> str:
    raw = text.encode("utf-8", "replace")
    kept = len(raw) - over - len(_CUT)
    if kept <= 0:
        return ""
    if keeps_end:
        return _CUT + raw[-kept:].decode("utf-8", "ignore")
    return raw[:kept].decode("utf-8", "ignore") + _CUT


def _is_carried(name: str) -> bool:
    return name.startswith(RESERVED_PREFIXES) or not _is_text(name)


def _carried(headers: Headers) -> Sequence[tuple[int, tuple[str, bytes | None]]]:
    return [(index, header) for index, header in enumerate(headers) if _is_carried(header[0])]


def _is_text(name: str) -> bool:
    """False for a name that was not UTF-8 in the log: no client sends it again as it was."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _put_back(application: Sequence[tuple[str, bytes | None]], reserved: object) -> Headers:
    headers = list(application)
    if not isinstance(reserved, list):
        raise LetterUnreadable("its reserved headers are not a list")
    for entry in reserved:
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], int):
            raise LetterUnreadable("a reserved header is not index, name and value")
        headers.insert(entry[0], headers_from_json([entry[1:]])[0])
    return Headers(headers)


def _text(record: RawRecord, name: str) -> str | None:
    value = record.headers.get(name)
    return None if value is None else value.decode("utf-8", "replace")


def _length(headers: Headers) -> int:
    return sum(len(name.encode("utf-8")) + len(value or b"") for name, value in headers)


def _size(letter: Letter, application: Headers) -> int:
    fixed = _PER_RECORD + len(letter.key or b"") + len(letter.value or b"")
    return fixed + _length(application) + _PER_HEADER * (len(application) + 12)

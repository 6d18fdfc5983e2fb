"""Letters as rows of `outboxd.letter` and back: columns, sanitised text, caps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from outboxd.ports import LetterView
from outboxd.postgres.connector import Row
from outboxd.postgres.header_json import letter_headers, letter_headers_json
from outboxd.records import Letter, LetterStatus, Stage, TimestampType

__all__ = ["COLUMNS", "columns_of", "letter_of", "text_for_postgres", "view_of"]

COLUMNS: Final = (
    'l.id, l.created_at, l.pipeline, l.consumer_group, l.handler, l.topic, l.partition, l."offset", l.record_timestamp, '
    "l.timestamp_type, l.message_key, l.message_value, l.headers::text as headers, l.stage, l.error_class, "
    "l.error_root_class, l.error_message, l.error_traceback, l.rule, l.fingerprint, l.retry_count, l.first_failed_at, "
    "l.last_failed_at, l.traceparent, l.outbox_id, l.status, l.sink, l.replay_count, l.updated_at"
)

_UNKEEPABLE: Final = re.compile("[\x00\ud800-\udfff]")
_MESSAGE_BYTES: Final = 8 * 1024
_TRACEBACK_BYTES: Final = 32 * 1024
_NAME_BYTES: Final = 1024


def text_for_postgres(text: str, limit: int = _NAME_BYTES) -> str:
    """Text that every UTF-8 database takes: NUL and lone surrogates replaced by U+FFFD, at most ``limit`` bytes."""
    data = _UNKEEPABLE.sub("\ufffd", text).encode()
    return data.decode() if len(data) <= limit else data[:limit].decode("utf-8", "ignore")


def columns_of(letters: Sequence[Letter]) -> list[list[object]]:
    """One list for each parameter of `letter_store.sql` after the sink, in its order."""
    rows = [_values(letter) for letter in letters]
    return [list(column) for column in zip(*rows, strict=True)]


def _values(letter: Letter) -> tuple[object, ...]:
    text = text_for_postgres
    return (
        letter.id,
        text(letter.pipeline),
        None if letter.group is None else text(letter.group),
        text(letter.handler),
        text(letter.topic),
        letter.partition,
        letter.offset,
        letter.timestamp,
        letter.timestamp_type.value,
        letter.key,
        letter.value,
        letter_headers_json(letter.headers),
        letter.stage.value,
        text(letter.error_class),
        text(letter.error_root_class),
        text(letter.error_message, _MESSAGE_BYTES),
        text(letter.error_traceback, _TRACEBACK_BYTES),
        text(letter.rule),
        text(letter.fingerprint),
        letter.attempts,
        _aware(letter.first_failed_at),
        _aware(letter.last_failed_at),
        None if letter.traceparent is None else text(letter.traceparent),
        None if letter.outbox_id is None else text(letter.outbox_id),
    )


def _aware(moment: datetime) -> datetime:
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def letter_of(row: Row) -> Letter:
    """The letter of a row with `COLUMNS`."""
    return Letter(
        id=row["id"],
        pipeline=row["pipeline"],
        group=row["consumer_group"],
        handler=row["handler"],
        topic=row["topic"],
        partition=row["partition"],
        offset=row["offset"],
        timestamp=row["record_timestamp"],
        timestamp_type=TimestampType(row["timestamp_type"]),
        key=row["message_key"],
        value=row["message_value"],
        headers=letter_headers(row["headers"]),
        stage=Stage(row["stage"]),
        error_class=row["error_class"],
        error_root_class=row["error_root_class"],
        error_message=row["error_message"],
        error_traceback=row["error_traceback"],
        attempts=row["retry_count"],
        first_failed_at=row["first_failed_at"],
        last_failed_at=row["last_failed_at"],
        rule=row["rule"],
        fingerprint=row["fingerprint"],
        traceparent=row["traceparent"],
        outbox_id=row["outbox_id"],
    )


def view_of(row: Row) -> LetterView:
    """The letter of a row with `COLUMNS`, with where it stands."""
    return LetterView(
        letter=letter_of(row),
        status=LetterStatus(row["status"]),
        sink=row["sink"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        replay_count=row["replay_count"],
    )

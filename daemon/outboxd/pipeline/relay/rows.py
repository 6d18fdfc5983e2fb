"""Pure questions about a row: is it fit for its topic, how large is it, and which record is made of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final
from uuid import UUID

from outboxd.errors import RecordError, RecordRejected
from outboxd.ids import HEADER_ROW_ID, row_identity
from outboxd.ports import OutboundRecord, TopicInfo
from outboxd.records import Headers, OutboxRow

__all__ = ["BATCH_OVERHEAD", "InvalidRow", "TopicNotListed", "is_listed", "record_maker", "record_size", "row_fault"]

_LAST_TIMESTAMP: Final = 253_402_300_799_999
"""The last millisecond of the year 9999; `infinity` comes as a number beyond it."""
BATCH_OVERHEAD: Final = 61
"""Bytes of a record batch without its records."""
_RECORD_OVERHEAD: Final = 21
_IDENTITY_SIZE: Final = 80
"""An upper bound for the header that carries the row's identity."""


class InvalidRow(RecordError):
    """The row cannot become a record of its topic, whoever tries."""

    code = "row_invalid"


class TopicNotListed(RecordError):
    """The row's topic is not one of `publish.topics`."""

    code = "topic_not_listed"


def record_size(row: OutboxRow) -> int:
    """An upper bound for the row's bytes in an uncompressed batch."""
    size = _RECORD_OVERHEAD + _IDENTITY_SIZE
    if row.key is not None:
        size += len(row.key)
    if row.value is not None:
        size += len(row.value)
    for name, value in row.headers:
        size += 10 + 4 * len(name) + (0 if value is None else len(value))
    return size


def row_fault(
    row: OutboxRow, topic: TopicInfo, now: int, *, size: int, is_compressed: bool
) -> RecordError | RecordRejected | None:
    """Why the broker would refuse the row; None when it is fit. ``now`` in milliseconds.

    A row that is too large as it stands may still fit when it is compressed: then only the broker can tell.
    """
    if row.defect is not None:
        return InvalidRow(row.defect, suggestion="correct the row in its table, or delete it")
    if row.value is None and row.key is None:
        return InvalidRow(
            "a row without payload is a tombstone, and a tombstone needs a key",
            suggestion="give the row a key, or a payload (JSON null and the empty payload are payloads)",
        )
    limit = topic.max_message_bytes
    if limit is not None and size + BATCH_OVERHEAD > limit and not is_compressed:
        return RecordRejected(
            f"the row is about {size} bytes, more than max.message.bytes = {limit} of {topic.name}",
            suggestion="raise the topic's max.message.bytes, or set publish.compression",
        )
    return None if row.timestamp is None else _timestamp_fault(row.timestamp, topic, now)


def _timestamp_fault(timestamp: int, topic: TopicInfo, now: int) -> RecordRejected | None:
    remedy = "correct the row's timestamp, or the topic's message.timestamp limits"
    if timestamp < 0:
        return RecordRejected(f"the timestamp {timestamp} lies before 1970", suggestion=remedy)
    if timestamp > _LAST_TIMESTAMP:
        return RecordRejected("the timestamp lies behind the year 9999", suggestion=remedy)
    if topic.timestamp_before_max is not None and now - timestamp > topic.timestamp_before_max:
        return RecordRejected(f"the timestamp {timestamp} is older than {topic.name} allows", suggestion=remedy)
    if topic.timestamp_after_max is not None and timestamp - now > topic.timestamp_after_max:
        return RecordRejected(f"the timestamp {timestamp} is further ahead than {topic.name} allows", suggestion=remedy)
    return None


def record_maker(relay_id: UUID) -> Callable[[OutboxRow], OutboundRecord]:
    """Makes the record of a row: bytes as they are (invariant 7), with the row's identity as the last header."""
    # The relay's part of the identity is made once: writing a uuid out is dearer than the rest of the record.
    prefix = row_identity(relay_id, 0).removesuffix("0").encode()

    def make(row: OutboxRow) -> OutboundRecord:
        identity = (HEADER_ROW_ID, b"%b%d" % (prefix, row.row_id))
        headers = row.headers
        if headers and any(name == HEADER_ROW_ID for name, _ in headers):
            headers = Headers(header for header in headers if header[0] != HEADER_ROW_ID)
        return OutboundRecord(
            key=row.key, value=row.value, headers=Headers((*headers, identity)), timestamp=row.timestamp
        )

    return make


def is_listed(topic: str, listed: Collection[str]) -> bool:
    """Whether rows for this topic may go out: all may when no topics are listed."""
    return not listed or topic in listed

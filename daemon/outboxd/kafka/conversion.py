"""aiokafka's records as outboxd's."""

from __future__ import annotations

from typing import Any, Final

from outboxd.records import NO_HEADERS, Headers, RawRecord, TimestampType

__all__ = ["raw_record"]

_TYPES: Final = {0: TimestampType.CREATE_TIME, 1: TimestampType.LOG_APPEND_TIME}


def raw_record(record: Any) -> RawRecord:
    """The record's own bytes; nothing is decoded but header names, which the client reads as UTF-8."""
    timestamp = record.timestamp
    return RawRecord(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=-1 if timestamp is None else timestamp,
        timestamp_type=_TYPES.get(record.timestamp_type, TimestampType.NONE),
        key=record.key,
        value=record.value,
        headers=Headers(record.headers) if record.headers else NO_HEADERS,
    )

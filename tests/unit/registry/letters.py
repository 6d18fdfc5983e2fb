"""One letter, for tests that only pass it on."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from outboxd.records import NO_HEADERS, Letter, Stage, TimestampType

__all__ = ["letter"]

_AT = datetime(2026, 1, 1, tzinfo=UTC)


def letter() -> Letter:
    return Letter(
        id=UUID(int=1),
        pipeline="p",
        group="g",
        handler="log",
        topic="t",
        partition=0,
        offset=7,
        timestamp=1,
        timestamp_type=TimestampType.CREATE_TIME,
        key=b"k",
        value=b"v",
        headers=NO_HEADERS,
        stage=Stage.HANDLE,
        error_class="ValueError",
        error_root_class="ValueError",
        error_message="no",
        error_traceback="",
        attempts=1,
        first_failed_at=_AT,
        last_failed_at=_AT,
        rule="otherwise",
        fingerprint="f",
    )

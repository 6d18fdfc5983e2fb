"""The user's code of the end-to-end test: named in its YAML as `module:function`."""

from __future__ import annotations

from outboxd.api import Record

handled: list[tuple[bytes | None, object]] = []
refuse: set[object] = set()


class Refused(Exception):
    """The handler will not have this record, however often it comes."""


async def handle(record: Record) -> None:
    """Remember the record, or refuse it."""
    if record.value in refuse:
        raise Refused(f"{record.value} is not wanted")
    handled.append((record.key, record.value))

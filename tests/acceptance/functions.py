"""The user's code of these tests, run by the daemon: handlers and actions that leave a line per call in a file.

`OUTBOXD_TEST_CALLS` names the file, `OUTBOXD_TEST_GATE` another one: while that does not exist, what is gated fails.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from outboxd.api import Published, Record

__all__ = ["NotWanted", "accept", "act_when_allowed", "finish_when_allowed", "refuse", "refuse_until_allowed"]


class NotWanted(Exception):
    """The handler will not have this record."""


def _note(line: str) -> None:
    with Path(os.environ["OUTBOXD_TEST_CALLS"]).open("a", encoding="utf-8") as calls:
        calls.write(f"{line}\n")


def _is_allowed() -> bool:
    return Path(os.environ["OUTBOXD_TEST_GATE"]).exists()


def _key(key: bytes | None) -> str:
    return "" if key is None else key.decode()


async def accept(record: Record) -> None:
    """Handled."""
    _note(_key(record.key))


async def refuse(record: Record) -> None:
    """Never handled."""
    _note(_key(record.key))
    raise NotWanted("no")


async def refuse_until_allowed(record: Record) -> None:
    """Handled once the gate is open."""
    _note(_key(record.key))
    if not _is_allowed():
        raise NotWanted("not yet")


async def finish_when_allowed(record: Record) -> None:
    """Begins at once and is in the middle of it until the gate is open."""
    _note(f"{_key(record.key)} begun")
    while not _is_allowed():
        await asyncio.sleep(0.02)
    _note(f"{_key(record.key)} finished")


def act_when_allowed(published: Published) -> None:
    """An action that fails while the gate is shut."""
    _note(f"{published.row_id} {published.offset} {published.idempotency_id}")
    if not _is_allowed():
        raise RuntimeError("not yet")

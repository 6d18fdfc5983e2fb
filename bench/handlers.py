"""The handlers that outboxd's consumer is measured with."""

from __future__ import annotations

import asyncio

from bench.tally import Tally
from outboxd.api import Record

__all__ = ["SLOW_SECONDS", "noop", "slow"]

SLOW_SECONDS = 0.005

_tally: Tally | None = None


def _counting() -> Tally:
    global _tally  # noqa: PLW0603 -- one daemon, one measurement
    if _tally is None:
        _tally = Tally.from_environment()
    return _tally


async def noop(record: Record) -> None:
    """Nothing but counting."""
    (_tally or _counting()).one(record.offset)


async def slow(record: Record) -> None:
    """Wait as for an answer from elsewhere."""
    await asyncio.sleep(SLOW_SECONDS)
    (_tally or _counting()).one(record.offset)

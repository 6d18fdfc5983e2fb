"""Waiting for something to be seen, never without a bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final, TypeVar

__all__ = ["NotSeen", "until"]

_T = TypeVar("_T")
_PAUSE: Final = 0.2


class NotSeen(Exception):
    """What was waited for did not come; the message says what, and how things are instead."""


async def until(
    look: Callable[[], Awaitable[_T | None]],
    *,
    within: timedelta,
    what: str,
    but: Callable[[], Awaitable[str]] | None = None,
) -> _T:
    """Look again and again until there is something to see (truthy), and return it.

    ``what`` completes "waited in vain until ..."; ``but`` tells how things are instead. Raises NotSeen after
    ``within``, also when a look itself hangs.
    """
    try:
        async with asyncio.timeout(within.total_seconds()):
            while True:
                seen = await look()
                if seen:
                    return seen
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        instead = "" if but is None else f"; {await but()}"
        raise NotSeen(f"waited {within.total_seconds():g} s in vain until {what}{instead}") from None

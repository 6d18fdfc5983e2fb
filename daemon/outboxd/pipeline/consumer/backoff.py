"""How long a failed call waits before the next one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outboxd.ports import Random

__all__ = ["CHAIN_BACKOFF", "CONNECT_BACKOFF", "Backoff"]

_LARGEST_EXPONENT = 64
"""Beyond this every factor above 1 has long met its cap; keeps `factor ** n` from overflowing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential waits: ``initial`` seconds, times ``factor`` each time, never above ``maximum`` seconds.

    ``jitter``: `full` draws from [0, wait], `equal` from [wait / 2, wait], `none` takes the wait itself.
    """

    initial: float
    factor: float
    maximum: float
    jitter: Literal["full", "equal", "none"]

    def delay(self, failures: int, random: Random) -> float:
        """Seconds to wait after so many failures in a row (at least one)."""
        exponent = min(max(failures, 1) - 1, _LARGEST_EXPONENT)
        wait = min(self.maximum, self.initial * self.factor**exponent)
        match self.jitter:
            case "full":
                return random.uniform(0.0, wait)
            case "equal":
                return random.uniform(wait / 2, wait)
            case "none":
                return wait


CHAIN_BACKOFF = Backoff(initial=1.0, factor=2.0, maximum=30.0, jitter="equal")
"""Between two tries of a dead-letter chain that took nothing."""
CONNECT_BACKOFF = Backoff(initial=1.0, factor=2.0, maximum=30.0, jitter="equal")
"""Between two tries to reach a broker or a topic."""

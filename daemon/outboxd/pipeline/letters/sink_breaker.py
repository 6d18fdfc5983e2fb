"""Decides which sinks of a chain are passed over: one that failed, for a growing while."""

from __future__ import annotations

from typing import Final

from outboxd.ports import Clock

__all__ = ["SinkBreaker"]

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
_LARGEST_EXPONENT: Final = 16


class SinkBreaker:
    """Closed, every write goes through; open, none until the pause is over, then one at a time tries."""

    __slots__ = ("_clock", "_failures", "_is_trying", "_openings", "_until")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._is_trying = False
        self._openings = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """True from a failure to the next success."""
        return self._failures > 0

    @property
    def retry_in(self) -> float:
        """Seconds until the sink is tried again though others work; 0.0 when it may be now."""
        return max(0.0, self._until - self._clock.monotonic()) if self.is_open else 0.0

    def may_try(self) -> bool:
        """True when a write that has other sinks may go to this one."""
        return not self.is_open or (self.retry_in == 0.0 and not self._is_trying)

    def began(self) -> int:
        """A write begins; gives the mark to hand to `failed`."""
        self._is_trying = self.is_open
        return self._openings

    def ended(self) -> None:
        """A write is over, whatever came of it."""
        self._is_trying = False

    def succeeded(self) -> bool:
        """The sink answered; True when it had failed before."""
        was_open = self.is_open
        self._failures = 0
        return was_open

    def failed(self, mark: int) -> float:
        """The write whose `began` gave ``mark`` failed; gives the seconds for which the sink is passed over.

        Writes that were under way when the breaker opened tell nothing new: only one of them makes the pause grow.
        """
        if not self.is_open or mark == self._openings:
            self._failures += 1
            self._openings += 1
            pause = _FIRST_PAUSE * 2.0 ** min(self._failures - 1, _LARGEST_EXPONENT)
            self._until = self._clock.monotonic() + min(pause, _LONGEST_PAUSE)
        return self.retry_in

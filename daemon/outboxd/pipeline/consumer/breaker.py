"""Tells an outage from poison: opens when many records fail and none succeeds (invariant 5). Pure; time is an argument."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import Final, Generic, TypeVar

__all__ = ["Breaker"]

_T = TypeVar("_T", bound=Hashable)

_LARGEST_WINDOW: Final = 1024
"""Charges remembered at most: one key that fails again and again must not make the window grow without bound."""


class Breaker(Generic[_T]):
    """Closed, records flow; open, one record at a time probes, until one of those succeeds.

    It opens on `pause`, or when at least ``failures`` distinct records of at least two keys failed retryably within
    ``within`` seconds and nothing succeeded in between. A single key never opens it: its failures are its own.
    """

    __slots__ = ("_failed", "_failures", "_next_probe", "_probe", "_probe_every", "_within", "is_open", "opened_at")

    def __init__(self, *, failures: int, within: float, probe_every: float) -> None:
        self._failures = failures
        self._within = within
        self._probe_every = probe_every
        self._failed: deque[tuple[float, _T, Hashable]] = deque()
        self._probe: _T | None = None
        self._next_probe = 0.0
        self.is_open = False
        self.opened_at = 0.0

    @property
    def is_watching(self) -> bool:
        """True when a success would change something: cheap to ask for each record."""
        return self.is_open or bool(self._failed)

    @property
    def next_probe_at(self) -> float:
        """When, by the clock whose times it is given, the next probe may start."""
        return self._next_probe

    def failed(self, record: _T, key: Hashable, now: float) -> Sequence[_T] | None:
        """A retryable failure that was charged while closed.

        When this opens the breaker, gives each charge in the window, to be given back; else None.
        """
        failed = self._failed
        failed.append((now, record, key))
        while failed[0][0] < now - self._within or len(failed) > _LARGEST_WINDOW:
            failed.popleft()
        if len(failed) < self._failures:
            return None
        if len({entry[1] for entry in failed}) < self._failures or len({entry[2] for entry in failed}) < 2:
            return None
        return self._open(now)

    def pause(self, now: float) -> Sequence[_T]:
        """A rule said that the dependency is out. Gives each charge in the window, to be given back."""
        if self.is_open:
            return ()
        return self._open(now)

    def succeeded(self, record: _T) -> bool:
        """A call succeeded; True when this closed the breaker.

        While open only a probe counts: a call that began before the outage says nothing about it.
        """
        if not self.is_open:
            self._failed.clear()
            return False
        if record != self._probe:
            return False
        self.is_open = False
        self._probe = None
        return True

    def may_probe(self, now: float) -> bool:
        """While open: True when one record may be tried now."""
        return self._probe is None and now >= self._next_probe

    def probing(self, record: _T, now: float) -> None:
        """This record probes; no other does until `probed`, nor before ``probe_every`` has passed."""
        self._probe = record
        self._next_probe = now + self._probe_every

    def probed(self, record: _T) -> None:
        """The record's call is over, whatever came of it."""
        if record == self._probe:
            self._probe = None

    def _open(self, now: float) -> Sequence[_T]:
        charged = [entry[1] for entry in self._failed if entry[0] >= now - self._within]
        self._failed.clear()
        self.is_open = True
        self.opened_at = now
        self._probe = None
        self._next_probe = now + self._probe_every
        return charged

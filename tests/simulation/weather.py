"""What befalls the calls of one run: drawn from its seed, each run with its own few kinds of fault and its own rates.

A run that meets every fault at once finds less than many runs that each meet some: a fault hides others behind it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

__all__ = ["Fate", "Kill", "Trouble", "Weather"]


class Trouble(Enum):
    """What may go wrong with a call."""

    REFUSED = "refused"
    """Nothing is done, and the caller hears of it."""
    REQUEST_LOST = "the request is lost"
    """Nothing is done, and the caller hears nothing."""
    RESET = "the answer is lost, the connection breaks"
    """It is done, and the caller hears that something went wrong."""
    ANSWER_LOST = "the answer is lost"
    """It is done, and the caller hears nothing."""
    LATE = "is given up and done later"
    """The caller hears that something went wrong; it is done seconds later all the same."""
    SLOW = "is slow"
    """Seconds each way."""


class Kill(Enum):
    """Where in a call its process dies."""

    BEFORE = "before"
    """The request does not leave."""
    AFTER = "after"
    """The request is on its way; the answer finds nobody."""


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one call: seconds to the server and back, and what goes wrong."""

    there: float
    back: float
    trouble: Trouble | None = None
    kill: Kill | None = None


_KINDS: Final = tuple(Trouble)


class Weather:
    """Draws the fate of each call. ``kinds``, ``rate`` and ``kills`` are drawn once; `calm` ends all trouble."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._is_calm = False
        self.delay = chance.choice([0.0002, 0.002, 0.02])
        self.kinds: Sequence[Trouble] = [kind for kind in _KINDS if chance.random() < 0.6]
        self.rate = chance.choice([0.0, 0.01, 0.04, 0.12]) if self.kinds else 0.0
        self.kills = chance.choice([0.0, 0.0, 0.002, 0.008])
        self.spares: Callable[[str], bool] = lambda _: False
        """Calls that nothing befalls."""
        self.in_order: frozenset[str] = frozenset()
        """Calls that go over one connection: a later one is never done before an earlier one."""

    def __str__(self) -> str:
        kinds = ", ".join(kind.name for kind in self.kinds)
        return f"delay {self.delay:g} s, trouble {self.rate:g} of calls ({kinds}), kills {self.kills:g} of calls"

    def calm(self) -> None:
        """From now on every call is answered."""
        self._is_calm = True

    def fate(self, call: str) -> Fate:
        """What becomes of this call."""
        chance = self._chance
        plain = Fate(chance.random() * self.delay, chance.random() * self.delay)
        if self._is_calm or self.spares(call):
            return plain
        draw = chance.random()
        if draw < self.kills:
            return replace(plain, kill=chance.choice([Kill.BEFORE, Kill.AFTER]))
        if draw >= self.kills + self.rate:
            return plain
        trouble = chance.choice(self.kinds)
        if trouble is Trouble.LATE and call in self.in_order:
            trouble = Trouble.RESET
        match trouble:
            case Trouble.SLOW:
                return Fate(chance.random() * 3, chance.random() * 3, trouble)
            case Trouble.LATE:
                return replace(plain, there=chance.random() * 12, trouble=trouble)
            case _:
                return replace(plain, trouble=trouble)

"""A schedule of faults drawn from a seed: the same seed and faults give the same ones in the same order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from random import Random

from outboxd.testing.chaos.faults import Fault, Seconds

__all__ = ["Schedule", "Strike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One fault of a schedule: the wait before it and how long it lasts, in seconds."""

    fault: Fault
    after: float
    lasts: float

    def __str__(self) -> str:
        return f"after {self.after:.1f} s {self.fault.name}" + (f" for {self.lasts:.1f} s" if self.lasts else "")


class Schedule:
    """Faults one after the other, each ended before the next begins.

    What strikes and how long is drawn from the seed alone and never from what happens, so that a failing run can be
    tried again; how far a run comes depends on the time that starts and stops take. Faults at the same time are two
    schedules run together, on victims of their own.
    """

    def __init__(self, *, seed: int | str, faults: Sequence[Fault], pause: Seconds = (2.0, 3.0)) -> None:
        """``pause`` bounds the wait between the end of one and the beginning of the next."""
        self.seed = seed
        self.done: list[Strike] = []
        """What has struck so far, the current one included."""
        self._faults = list(faults)
        self._pause = pause

    def strikes(self) -> Iterator[Strike]:
        """All of the schedule, without end."""
        random = Random(self.seed)
        weights = [fault.weight for fault in self._faults]
        while True:
            (fault,) = random.choices(self._faults, weights)
            yield Strike(fault=fault, after=random.uniform(*self._pause), lasts=random.uniform(*fault.lasts))

    async def run(self, *, lasting: timedelta | None = None, strikes: int | None = None) -> None:
        """Carry it out for this time, or for so many strikes; whichever comes first. Every fault that began is ended.

        Raises what a fault raises: TimeoutError past its deadline, DevServerFailed when a victim had ended by itself
        or does not start again.
        """
        if lasting is None and strikes is None:
            raise ValueError("say how long, or how many strikes")
        until = None if lasting is None else time.monotonic() + lasting.total_seconds()
        for number, strike in enumerate(self.strikes()):
            if number == strikes or (until is not None and time.monotonic() + strike.after > until):
                return
            await asyncio.sleep(strike.after)
            self.done.append(strike)
            await _carry_out(strike)

    def __str__(self) -> str:
        return f"seed {self.seed}: {'; '.join(map(str, self.done)) or 'nothing yet'}"


async def _carry_out(strike: Strike) -> None:
    fault, deadline = strike.fault, strike.fault.deadline.total_seconds()
    try:
        async with asyncio.timeout(deadline):
            await fault.begin()
        await asyncio.sleep(strike.lasts)
    finally:
        async with asyncio.timeout(deadline):
            await fault.end()

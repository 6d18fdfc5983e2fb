"""Faults that a test plans for the calls of a double: raised before, hung, late, or done with the answer lost."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Delayed", "Fault", "Faults", "Hung", "Late", "Lost", "Raised"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Raised:
    """Nothing is done and the error is raised."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Lost:
    """The call takes effect, and the caller gets the error instead of the answer."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Late:
    """The caller gets the error at once; the call takes effect so many seconds later, if it still can."""

    seconds: float
    error: Exception


@dataclass(frozen=True, slots=True)
class Hung:
    """The call never answers; it takes effect at once when ``is_done``, else never."""

    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Delayed:
    """The call takes effect after ``before`` seconds and answers after ``after`` more."""

    before: float = 0.0
    after: float = 0.0


Fault = Raised | Lost | Late | Hung | Delayed


class Faults:
    """What befalls the next calls of a double, by the name of the call.

    ``choose`` is asked for each call that has no planned fault; ``calls`` are the names of all calls so far.
    """

    def __init__(self, choose: Callable[[str], Fault | None] = lambda _: None) -> None:
        self.choose = choose
        self.calls: list[str] = []
        self._planned: defaultdict[str, deque[Fault | None]] = defaultdict(deque)

    def plan(self, call: str, *faults: Fault | None) -> None:
        """What happens to the next calls of this name, in order; None lets one pass."""
        self._planned[call].extend(faults)

    async def around(self, call: str, effect: Callable[[], _T]) -> _T:
        """Carry ``effect`` out as the plan for this call has it."""
        self.calls.append(call)
        planned = self._planned[call]
        fault = planned.popleft() if planned else self.choose(call)
        await asyncio.sleep(0)
        match fault:
            case None:
                return effect()
            case Raised(error):
                raise error
            case Lost(error):
                effect()
                raise error
            case Late(seconds, error):
                asyncio.get_running_loop().call_later(seconds, _quietly, effect)
                raise error
            case Hung(is_done):
                if is_done:
                    effect()
                await asyncio.get_running_loop().create_future()
                raise AssertionError("a future that nobody resolves")
            case Delayed(before, after):
                await asyncio.sleep(before)
                answer = effect()
                await asyncio.sleep(after)
                return answer


def _quietly(effect: Callable[[], object]) -> None:
    """Nobody waits for a late effect: what it would raise is lost with its answer."""
    with suppress(Exception):
        effect()

"""What the command line chose."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """``rows`` or records of one measurement; ``seconds`` of one latency run; ``only`` is empty for everybody."""

    rows: int
    repeats: int
    seconds: int
    only: Collection[str] = ()

    def chosen(self, known: Iterable[str]) -> list[str]:
        """The contenders to measure, in their own order. Raises SystemExit for an unknown one."""
        names = list(known)
        unknown = [name for name in self.only if name not in names]
        if unknown:
            raise SystemExit(f"no contender {', '.join(unknown)}; there are {', '.join(names)}")
        return [name for name in names if not self.only or name in self.only]

    @staticmethod
    def say(text: str) -> None:
        """Progress, beside the results."""
        print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)

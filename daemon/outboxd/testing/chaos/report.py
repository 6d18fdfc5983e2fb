"""What a check found: which invariant is broken, by which rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["INVARIANTS", "Report", "Violation"]

INVARIANTS: Final[Mapping[int, str]] = {
    1: "a row is marked only after the broker acknowledged its record",
    2: "no committed row is ever skipped",
    3: "records of one key reach the topic in row order and once each",
    4: "an offset is committed only when every record up to it is handled or safely in a letter",
    5: "an outage is not poison: it writes no letters",
    6: "a letter is written once per failed record of a group",
    7: "key, value and headers survive byte for byte",
    8: "a letter reaches its home exactly once",
    9: "a replay runs each letter once per attempt",
    10: "no transaction is held while talking to the outside",
    11: "no secret is ever printed",
    12: "status tells the truth",
}
"""The invariants of outboxd by their numbers, in short; `daemon/README.md` has them in full."""

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One invariant, what is wrong, and every row or record that shows it."""

    invariant: int
    what: str
    rows: tuple[str, ...]

    def __str__(self) -> str:
        shown = "; ".join(self.rows[:_SHOWN])
        more = f"; and {len(self.rows) - _SHOWN} more" if len(self.rows) > _SHOWN else ""
        return f"invariant {self.invariant} ({INVARIANTS[self.invariant]}): {len(self.rows)} {self.what}: {shown}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a check; `assert report.holds, report` in a test.

    ``counts`` tell what was there, for a run in which nothing happened looks clean as well. Reports add up.
    """

    violations: Sequence[Violation] = ()
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """True when no invariant is broken."""
        return not self.violations

    def __add__(self, other: Report) -> Report:
        return Report(
            violations=[*self.violations, *other.violations],
            counts={**self.counts, **other.counts},
        )

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in self.counts.items())
        return "\n".join([*(map(str, self.violations) if self.violations else ["every invariant holds"]), counts])


def found(invariant: int, what: str, rows: Iterable[object]) -> list[Violation]:
    """A violation for these rows; none when there are none."""
    named = tuple(str(row) for row in rows)
    return [Violation(invariant=invariant, what=what, rows=named)] if named else []

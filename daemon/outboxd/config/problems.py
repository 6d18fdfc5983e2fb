"""What is wrong with a configuration: each problem with its place, code, message and suggestion; all at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from outboxd.errors import ConfigurationError

__all__ = ["NOWHERE", "ConfigurationInvalid", "KeyPath", "Place", "Problem", "dotted"]

KeyPath: TypeAlias = tuple[str | int, ...]
"""Where a value stands in the merged configuration: keys and list indexes from the top."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """A position in a file, counted from one. What comes from elsewhere has a `file` that says from where."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


NOWHERE: Final = Place(file="configuration")
"""The place of what nobody wrote."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong. Its texts never hold a value that came from the environment or a file."""

    place: Place
    code: str
    message: str
    suggestion: str
    path: KeyPath = field(default=())

    def __str__(self) -> str:
        return f"{self.place}  {self.code}  {self.said}  {self.suggestion}"

    @property
    def said(self) -> str:
        """The message with the key it is about."""
        return f"{dotted(self.path)}: {self.message}" if self.path else self.message


class ConfigurationInvalid(ConfigurationError):
    """Everything that is wrong with a configuration, in the order of files and lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(
            sorted(problems, key=lambda problem: (problem.place, problem.path and dotted(problem.path)))
        )
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        first = f"; the first: {self.problems[0]}" if self.problems else ""
        super().__init__(
            f"the configuration has {count}{first}",
            suggestion="run `outboxd check` for every problem with its place and remedy",
        )


def dotted(path: KeyPath) -> str:
    """A path as people write it: `pipelines.orders.errors.rules[0].then`; a key with dots is quoted."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            shown = f'"{step}"' if "." in step or not step else step
            text += f".{shown}" if text else shown
    return text

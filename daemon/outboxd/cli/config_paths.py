"""How commands find and load the configuration, and say what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from outboxd.cli.output import CommandFailed, ExitCode
from outboxd.config import Configuration, ConfigurationInvalid, Problem, load
from outboxd.registry import Registry, build_registry

__all__ = ["described_problem", "load_configuration", "wanted_paths"]


def wanted_paths(first: Sequence[str] | None, more: Sequence[str] | None = None) -> Sequence[str]:
    """The paths of `-c A B -c C`. Raises CommandFailed when there are none."""
    paths = [*(first or ()), *(more or ())]
    if not paths:
        raise CommandFailed(
            "no configuration was named",
            code="usage",
            exit_code=ExitCode.INPUT,
            suggestion="give files or folders with -c PATH, or set OUTBOXD_CONFIG",
        )
    return paths


def load_configuration(
    paths: Sequence[str], *, registry: Registry | None = None, overrides: Mapping[str, str] | None = None
) -> Configuration:
    """The configuration, or a CommandFailed (exit code 2) whose message is the whole report."""
    try:
        return load(paths, environ=os.environ, registry=registry or build_registry(), overrides=overrides)
    except ConfigurationInvalid as error:
        count = "1 problem" if len(error.problems) == 1 else f"{len(error.problems)} problems"
        report = "".join(f"\n{problem}" for problem in error.problems)
        raise CommandFailed(
            f"the configuration has {count}:{report}",
            code=error.code,
            exit_code=ExitCode.INPUT,
            suggestion="`outboxd check` reports the same without starting anything",
            path=str(error.problems[0].place) if error.problems else None,
            result={"problems": [described_problem(problem) for problem in error.problems]},
        ) from None


def described_problem(problem: Problem) -> Mapping[str, Any]:
    """A problem as JSON."""
    return {
        "file": problem.place.file,
        "line": problem.place.line,
        "column": problem.place.column,
        "code": problem.code,
        "message": problem.said,
        "suggestion": problem.suggestion,
        "path": list(problem.path),
    }

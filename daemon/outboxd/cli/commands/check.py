"""`outboxd check`: everything that is wrong with a configuration, at once, without any server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

import typer

import outboxd
from outboxd.cli.config_paths import described_problem, wanted_paths
from outboxd.cli.output import CommandFailed, ConfigPaths, ExitCode, JsonFlag, MorePaths, finish
from outboxd.config import Configuration, ConfigurationInvalid, Problem, load
from outboxd.registry import build_registry

__all__ = ["register"]

_SARIF = "https://json.schemastore.org/sarif-2.1.0.json"


class ReportFormat(StrEnum):
    """How problems are reported."""

    TEXT = "text"
    """`file:line:column  code  message  suggestion`, one a line."""
    JSON = "json"
    """The envelope that every command prints with `--json`."""
    SARIF = "sarif"
    """SARIF 2.1.0, for code hosts and editors."""


def register(app: typer.Typer) -> None:
    """Add `check`."""
    app.command("check")(check)


def check(
    config: ConfigPaths = None,
    paths: MorePaths = None,
    report_format: Annotated[
        ReportFormat, typer.Option("--format", help="How problems are reported.")
    ] = ReportFormat.TEXT,
    as_json: JsonFlag = False,
) -> None:
    """Find everything that is wrong with a configuration. Exit code 2 when there is something."""
    as_json = as_json or report_format is ReportFormat.JSON

    def body() -> Mapping[str, Any]:
        try:
            configuration = load(wanted_paths(config, paths), environ=os.environ, registry=build_registry())
        except ConfigurationInvalid as error:
            if not as_json:
                _report(error.problems, report_format)
                raise typer.Exit(ExitCode.INPUT) from None
            raise _failed(error.problems) from None
        if report_format is ReportFormat.SARIF:
            _report((), report_format)
        return _summary(configuration)

    def show(summary: Mapping[str, Any]) -> None:
        if report_format is ReportFormat.TEXT:
            counts = ", ".join(f"{len(summary[name])} {name}" for name in ("files", "connections", "pipelines"))
            print(f"no problems: {counts}")

    finish("check", body, as_json=as_json, show=show)


def _summary(configuration: Configuration) -> Mapping[str, Any]:
    return {
        "files": [str(file) for file in configuration.files],
        "connections": list(configuration.connections),
        "pipelines": list(configuration.pipelines),
        "problems": [],
    }


def _failed(problems: Sequence[Problem]) -> CommandFailed:
    first = problems[0]
    return CommandFailed(
        f"the configuration has {len(problems)} problem(s); the first: {first.said}",
        code="configuration_invalid",
        exit_code=ExitCode.INPUT,
        suggestion=first.suggestion,
        path=str(first.place),
        result={"problems": [described_problem(problem) for problem in problems]},
    )


def _report(problems: Sequence[Problem], report_format: ReportFormat) -> None:
    if report_format is ReportFormat.SARIF:
        print(json.dumps(_sarif(problems), indent=2, ensure_ascii=False))
        return
    for problem in problems:
        print(problem)
    print(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}", file=sys.stderr)


def _sarif(problems: Sequence[Problem]) -> Mapping[str, Any]:
    rules = sorted({problem.code for problem in problems})
    driver = {"name": "outboxd", "version": outboxd.__version__, "rules": [{"id": rule} for rule in rules]}
    return {
        "$schema": _SARIF,
        "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "results": [_sarif_result(problem) for problem in problems]}],
    }


def _sarif_result(problem: Problem) -> Mapping[str, Any]:
    region = {"startLine": problem.place.line, "startColumn": problem.place.column}
    location = {"physicalLocation": {"artifactLocation": {"uri": problem.place.file}, "region": region}}
    text = f"{problem.said}. {problem.suggestion}"
    return {"ruleId": problem.code, "level": "error", "message": {"text": text}, "locations": [location]}

"""`outboxd check` on a folder with 25 planted mistakes finds exactly those, each with its place and its remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "planted"

PLANTED = [
    ("connections.yaml", 2, 3, "unknown_key", "did you mean 'name'?"),
    ("connections.yaml", 3, 18, "invalid_value", 'write "25s" for seconds or "25ms" for milliseconds'),
    (
        "connections.yaml",
        4,
        14,
        "host_not_loopback",
        "use 127.0.0.1 (or ::1), with a proxy in front that authenticates",
    ),
    ("connections.yaml", 6, 17, "unknown_value", "did you mean 'info'?"),
    ("connections.yaml", 8, 31, "value_missing", "set it, or give a default: ${env:NAME:default}"),
    ("connections.yaml", 9, 83, "wrong_type", "write a number without quotes, or correct the variable"),
    ("consumers.yaml", 3, 69, "wrong_type", "write a number without quotes, or correct the variable"),
    ("consumers.yaml", 10, 62, "group_shared", "give each a group of its own, or leave `group` out"),
    ("consumers.yaml", 18, 50, "pipeline_feeds_itself", "use another topic, or take it out of `consume.topics`"),
    ("consumers.yaml", 22, 21, "plugin_unknown", "did you mean 'python'?"),
    ("consumers.yaml", 24, 70, "invalid_value", 'write "64B" for bytes, or use KiB, MiB, GiB'),
    ("consumers.yaml", 27, 15, "wrong_format", "write package.module:function"),
    ("consumers.yaml", 29, 7, "duplicate_key", "keep one of them"),
    ("consumers.yaml", 34, 7, "contradiction", "change one of them"),
    (
        "consumers.yaml",
        36,
        28,
        "regex_invalid",
        "correct the pattern; a literal . or ( is written with a backslash, in single quotes",
    ),
    ("consumers.yaml", 37, 30, "invalid_value", 'for example "package.module.Class" or "ValueError"'),
    ("consumers.yaml", 38, 30, "wrong_type", "write it in quotes"),
    ("consumers.yaml", 38, 45, "unknown_value", "did you mean 'retry'?"),
    ("consumers.yaml", 43, 7, "not_available_yet", "remove the key: its default applies"),
    ("consumers.yaml", 45, 11, "missing_key", "add `directory: ...`"),
    ("relays.yaml", 4, 26, "connection_unknown", "did you mean 'store'?"),
    ("relays.yaml", 7, 26, "connection_type", "use one of: store"),
    ("relays.yaml", 13, 15, "not_a_power_of_two", "use 8, the default, unless more than 8 replicas share the work"),
    ("relays.yaml", 17, 38, "invalid_value", "did you mean $key?"),
    ("relays.yaml", 22, 5, "rows_shared", "keep one of them, or give each a table of its own"),
]


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The installed command, without settings of whoever runs the tests."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OUTBOXD_", "PLANTED_"))}
    command = [str(Path(sys.executable).with_name("outboxd")), "check", "-c", str(FOLDER), *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)


def test_exactly_the_25_planted_mistakes_are_found() -> None:
    finished = check("--json")
    problems: list[dict[str, Any]] = json.loads(finished.stdout)["result"]["problems"]
    found = [
        (Path(each["file"]).name, each["line"], each["column"], each["code"], each["suggestion"]) for each in problems
    ]
    assert len(PLANTED) == 25
    assert found == PLANTED
    assert finished.returncode == 2
    assert all(each["message"] for each in problems)


def test_the_report_is_a_line_for_each_problem() -> None:
    finished = check()
    lines = finished.stdout.splitlines()
    assert len(lines) == 25
    for line, (file, row, column, code, suggestion) in zip(lines, PLANTED, strict=True):
        assert line.startswith(f"{FOLDER / file}:{row}:{column}  {code}  ")
        assert line.endswith(f"  {suggestion}")
    assert (finished.returncode, finished.stderr) == (2, "25 problems\n")


def test_the_report_has_no_colours_when_it_is_piped() -> None:
    assert "\x1b" not in check().stdout + check().stderr

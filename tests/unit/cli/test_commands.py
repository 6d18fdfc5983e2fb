"""The commands that need no server, called as a shell does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from outboxd.cli import main

Run: TypeAlias = Callable[..., tuple[int, str, str]]

VALID = """
connections:
  shop: {type: postgres, dsn: "postgresql://u:${env:PW}@h/d"}
  main: {type: kafka, bootstrap_servers: ["localhost:9092"]}
pipelines:
  p: {consume: {connection: main, topics: [t]}, handler: {type: log}}
"""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of one call."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["outboxd", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        code = caught.value.code
        assert isinstance(code, int)
        return code, output.out, output.err

    return call


@pytest.fixture
def valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PW", "hunter2")
    file = tmp_path / "valid.yaml"
    file.write_text(VALID)
    return str(file)


@pytest.fixture
def invalid(tmp_path: Path) -> str:
    file = tmp_path / "invalid.yaml"
    file.write_text("daemon: {nmae: x}\nhttp: {port: yes}\n")
    return str(file)


def test_check_of_a_valid_configuration(run: Run, valid: str) -> None:
    assert run("check", "-c", valid)[:2] == (0, "no problems: 1 files, 2 connections, 1 pipelines\n")
    code, out, _ = run("check", "-c", valid, "--json")
    assert code == 0
    assert json.loads(out)["result"]["pipelines"] == ["p"]


def test_check_reports_every_problem_on_a_line_and_exits_2(run: Run, invalid: str) -> None:
    code, out, err = run("check", "-c", invalid)
    assert code == 2
    assert out.splitlines() == [
        f"{invalid}:1:10  unknown_key  daemon.nmae: there is no such key  did you mean 'name'?",
        f"{invalid}:2:14  wrong_type  http.port: must be a whole number  write a number without quotes, or correct the variable",
    ]
    assert err == "2 problems\n"


@pytest.mark.parametrize("flag", [("--json",), ("--format", "json")])
def test_check_as_json(flag: tuple[str, ...], run: Run, invalid: str) -> None:
    code, out, err = run("check", "-c", invalid, *flag)
    envelope: dict[str, Any] = json.loads(out)
    assert (code, err) == (2, "")
    assert (envelope["command"], envelope["ok"], envelope["error"]["code"]) == ("check", False, "configuration_invalid")
    assert envelope["error"]["path"] == f"{invalid}:1:10"
    assert [(each["line"], each["column"], each["code"]) for each in envelope["result"]["problems"]] == [
        (1, 10, "unknown_key"),
        (2, 14, "wrong_type"),
    ]


def test_check_as_sarif(run: Run, invalid: str, valid: str) -> None:
    code, out, _ = run("check", "-c", invalid, "--format", "sarif")
    report = json.loads(out)
    results = report["runs"][0]["results"]
    assert (code, report["version"], [result["ruleId"] for result in results]) == (
        2,
        "2.1.0",
        ["unknown_key", "wrong_type"],
    )
    assert results[0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 1, "startColumn": 10}
    code, out, _ = run("check", "-c", valid, "--format", "sarif")
    assert (code, json.loads(out)["runs"][0]["results"]) == (0, [])


def test_several_paths_follow_one_option(run: Run, valid: str, invalid: str) -> None:
    assert run("check", "-c", valid, invalid)[0] == 2
    assert run("check", "-c", valid, "-c", invalid)[0] == 2


def test_without_a_path_the_remedy_is_said(run: Run, monkeypatch: pytest.MonkeyPatch, valid: str) -> None:
    code, _, err = run("check")
    assert (code, "-c PATH" in err) == (2, True)
    monkeypatch.setenv("OUTBOXD_CONFIG", valid)
    assert run("check")[0] == 0


def test_config_show_keeps_placeholders_and_hides_secrets(run: Run, valid: str) -> None:
    code, out, _ = run("config", "show", "-c", valid)
    assert code == 0
    assert "dsn: '***${env:PW}***'" in out
    assert "hunter2" not in out
    document = json.loads(run("config", "show", "-c", valid, "--json")[1])["result"]
    assert document["pipelines"]["p"]["handler"] == {"type": "log"}
    assert document["connections"]["shop"]["dsn"] == "***${env:PW}***"


def test_config_show_of_an_invalid_configuration_is_the_report(run: Run, invalid: str) -> None:
    code, out, err = run("config", "show", "-c", invalid)
    assert (code, out) == (2, "")
    assert f"{invalid}:1:10  unknown_key" in err


def test_plugins_list_and_show(run: Run) -> None:
    code, out, _ = run("plugins", "list")
    assert code == 0
    assert any(line.split() == ["spool", "sink", "outboxd", "0.1.0"] for line in out.splitlines())
    code, out, _ = run("plugins", "show", "spool", "--json")
    (plugin,) = json.loads(out)["result"]["plugins"]
    assert (plugin["kind"], "directory" in plugin["settings"]["properties"]) == ("sink", True)
    kinds = [each["kind"] for each in json.loads(run("plugins", "show", "python", "--json")[1])["result"]["plugins"]]
    assert kinds == ["action", "handler"]
    assert "max_size: string, default" in run("plugins", "show", "spool")[1]


def test_an_unknown_plugin_is_your_input(run: Run) -> None:
    code, _, err = run("plugins", "show", "spol")
    assert (code, "did you mean 'spool'?" in err) == (2, True)


def test_schema_writes_only_what_changed(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    assert run("schema", "-o", str(file))[1] == f"{file}: written\n"
    assert run("schema", "-o", str(file))[1] == f"{file}: is up to date\n"
    assert json.loads(run("schema")[1]) == json.loads(file.read_text())
    assert json.loads(run("schema", "--json")[1])["result"] == json.loads(file.read_text())


@pytest.mark.parametrize(
    "arguments", [("nonsense",), ("check", "--nonsense"), ("plugins",), ("check", "--format", "xml")]
)
def test_a_wrong_command_line_is_your_input_also_as_json(arguments: tuple[str, ...], run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    code, out, err = run(*arguments, "--json")
    assert (code, err, json.loads(out)["error"]["code"]) == (2, "", "usage")


def test_help_and_version_are_fine(run: Run) -> None:
    assert run("--version")[:2] == (0, "outboxd 0.1.0\n")
    assert "Usage: outboxd" in run("--help")[1]
    assert "Usage: outboxd" in run()[1]

"""One envelope, four exit codes, and never a traceback that nobody asked for."""

from __future__ import annotations

import json

import pytest
import typer

from outboxd.cli.output import CommandFailed, ExitCode, debug, finish
from outboxd.errors import BrokerUnreachable, ConfigurationError, DatabaseDenied, LetterError, PipelineUnknown


def ended(body: object, *, as_json: bool = False) -> int:
    with pytest.raises(typer.Exit) as caught:
        finish("test", body, as_json=as_json, show=print)  # type: ignore[arg-type]
    return int(caught.value.exit_code)


def raising(error: BaseException) -> object:
    def body() -> None:
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (LetterError("x"), 1),
        (RuntimeError("x"), 1),
        (ConfigurationError("x"), 2),
        (PipelineUnknown("x"), 2),
        (BrokerUnreachable("x"), 3),
        (DatabaseDenied("x"), 3),
        (FileNotFoundError(2, "No such file", "x"), 3),
        (CommandFailed("x", exit_code=ExitCode.ENVIRONMENT), 3),
    ],
)
def test_the_exit_code_says_whose_fault_it_is(error: Exception, code: int) -> None:
    assert ended(raising(error)) == code


def test_json_is_one_envelope(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(lambda: {"a": 1}, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"command": "test", "ok": True, "result": {"a": 1}, "error": None}
    assert ended(raising(PipelineUnknown("no such pipeline", suggestion="look")), as_json=True) == 2
    output = capsys.readouterr()
    assert json.loads(output.out) == {
        "command": "test",
        "ok": False,
        "result": None,
        "error": {"code": "pipeline_unknown", "message": "no such pipeline", "suggestion": "look", "path": None},
    }
    assert output.err == ""


def test_an_unexpected_error_is_one_line_without_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    ended(raising(ZeroDivisionError("first\nsecond")))
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[0] == "error: unexpected ZeroDivisionError: first second"
    assert "Traceback" not in output.err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    debug(is_on=True)
    try:
        ended(raising(ZeroDivisionError("x")))
    finally:
        debug(is_on=False)
    assert "Traceback" in capsys.readouterr().err


def test_an_exit_of_the_body_is_kept() -> None:
    assert ended(raising(typer.Exit(7))) == 7

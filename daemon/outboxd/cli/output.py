"""What every command prints and how it ends: one envelope with `--json`, plain text for people, four exit codes.

A command's body returns its result or raises; `finish` prints it and ends the process:

    0  fine
    1  it failed
    2  what was asked cannot be carried out: options, configuration, names
    3  the environment: no broker, no database, no daemon, a missing privilege
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Annotated, Any, Final, NoReturn, TypeVar

import typer

from outboxd.errors import (
    BrokerError,
    ConfigurationError,
    DatabaseError,
    LetterUnknown,
    MoveRefused,
    OutboxdError,
    PipelineUnknown,
    PluginClash,
    PluginUnknown,
    StateConflict,
)

__all__ = ["CommandFailed", "ConfigPaths", "ExitCode", "JsonFlag", "MorePaths", "debug", "finish", "print_failure"]

_T = TypeVar("_T")


class ExitCode(IntEnum):
    """How a command ends."""

    FINE = 0
    FAILED = 1
    INPUT = 2
    ENVIRONMENT = 3


class CommandFailed(OutboxdError):
    """A command cannot do what it was asked to. ``path`` is the file or key that it is about."""

    code = "command_failed"

    def __init__(
        self,
        message: str,
        *,
        exit_code: ExitCode = ExitCode.FAILED,
        code: str | None = None,
        suggestion: str | None = None,
        path: str | None = None,
        result: object = None,
    ) -> None:
        super().__init__(message, suggestion=suggestion)
        self.exit_code = exit_code
        self.reported_code = code or self.code
        self.path = path
        self.result = result


JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON envelope instead of text.")]
"""`--json`, as every command has it."""
ConfigPaths = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="PATH", envvar="OUTBOXD_CONFIG", help="Files and folders; may be repeated."),
]
"""`-c PATH`, as every command that reads the configuration has it."""
MorePaths = Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="More files and folders.")]
"""Paths after the first, for `-c A B`."""

_INPUT: Final = (
    ConfigurationError,
    LetterUnknown,
    MoveRefused,
    PipelineUnknown,
    PluginClash,
    PluginUnknown,
    StateConflict,
)
_ENVIRONMENT: Final = (BrokerError, DatabaseError)
_debug: Final = {"is_on": False}


def debug(*, is_on: bool) -> None:
    """With ``is_on``, errors that nobody expected are printed with their traceback."""
    _debug["is_on"] = is_on


def finish(
    command: str, body: Callable[[], _T], *, as_json: bool, show: Callable[[_T], None] | None = None
) -> NoReturn:
    """Run the body and end: print its result (`show` it to people), or its error. ``command`` names it in the envelope."""
    try:
        result = body()
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001  # the outermost frame: whatever happened is said in one line
        raise typer.Exit(_fail(command, error, as_json=as_json)) from None
    if as_json:
        _print_envelope(command, result=result, error=None)
    elif show is not None:
        show(result)
    raise typer.Exit(ExitCode.FINE)


def print_failure(command: str, error: Mapping[str, Any], *, as_json: bool, result: object = None) -> None:
    """Print an error: the envelope, or for people what happened and what to do about it."""
    if as_json:
        _print_envelope(command, result=result, error=error)
        return
    print(f"error: {error['message']}", file=sys.stderr)
    if error.get("suggestion"):
        print(f"       {error['suggestion']}", file=sys.stderr)


def _fail(command: str, error: Exception, *, as_json: bool) -> ExitCode:
    exit_code, described = _described(error)
    result = error.result if isinstance(error, CommandFailed) else None
    if _debug["is_on"] and not isinstance(error, CommandFailed):
        traceback.print_exception(error)
    print_failure(command, described, as_json=as_json, result=result)
    return exit_code


def _described(error: Exception) -> tuple[ExitCode, Mapping[str, Any]]:
    if isinstance(error, CommandFailed):
        return error.exit_code, _error(error.reported_code, error.message, error.suggestion, error.path)
    if isinstance(error, OutboxdError):
        is_input, is_environment = isinstance(error, _INPUT), isinstance(error, _ENVIRONMENT)
        exit_code = ExitCode.INPUT if is_input else ExitCode.ENVIRONMENT if is_environment else ExitCode.FAILED
        return exit_code, _error(error.code, error.message, error.suggestion)
    if isinstance(error, OSError):
        what = error.strerror or type(error).__name__
        return ExitCode.ENVIRONMENT, _error(
            "os_error", what, None, None if error.filename is None else str(error.filename)
        )
    said = " ".join(str(error).split()) or "no message"
    return ExitCode.FAILED, _error(
        "internal", f"unexpected {type(error).__name__}: {said}", "run it again as `outboxd --debug ...` and report it"
    )


def _error(code: str, message: str, suggestion: str | None, path: str | None = None) -> Mapping[str, Any]:
    return {"code": code, "message": message, "suggestion": suggestion, "path": path}


def _print_envelope(command: str, *, result: object, error: Mapping[str, Any] | None) -> None:
    envelope = {"command": command, "ok": error is None, "result": result, "error": error}
    print(json.dumps(envelope, default=str, ensure_ascii=False))

"""The root of the command line.

A command is a module of `outboxd.cli.commands` with a function ``register(app: typer.Typer) -> None`` that adds its commands
to ``app`` (a group with `app.add_typer`); modules are found by themselves, so nothing is listed here. A command takes
``as_json: JsonFlag``, does its work in a body that returns a JSON-able result or raises an OutboxdError, and ends with
`outboxd.cli.output.finish`. What is heavy (drivers, the runtime, the REST server) is imported inside the body, so that
`outboxd check` starts fast. What several commands share stands beside this module.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys
from typing import Annotated, Final, NoReturn, cast

import typer

import outboxd
from outboxd.cli import commands
from outboxd.cli.output import ExitCode, debug, print_failure

__all__ = ["build_app", "main"]

_UsageError: Final = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])
"""What a wrong command line raises; typer brings the class along, under a name of its own in each version."""
_INTERRUPTED: Final = 130


def build_app() -> typer.Typer:
    """The application with every command."""
    app = typer.Typer(
        name="outboxd",
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Transactional outbox relay, Kafka consumer and dead-letter chain.",
    )
    app.callback()(_root)
    for module in sorted(pkgutil.iter_modules(commands.__path__), key=lambda module: module.name):
        importlib.import_module(f"{commands.__name__}.{module.name}").register(app)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"outboxd {outboxd.__version__}")
        raise typer.Exit


def _root(
    show_traceback: Annotated[bool, typer.Option("--debug", help="Show tracebacks of unexpected errors.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    debug(is_on=show_traceback)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    arguments = sys.argv[1:] or ["--help"]
    as_json = "--json" in arguments
    try:
        code = build_app()(arguments, prog_name="outboxd", standalone_mode=False)
    except _UsageError as error:
        context = error.ctx
        command = context.command_path if context else "outboxd"
        message, hint = error.format_message(), f"see `{command} --help`"
        described = {"code": "usage", "message": message, "suggestion": hint, "path": None}
        print_failure(command.removeprefix("outboxd").strip(), described, as_json=as_json)
        code = ExitCode.INPUT
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        code = _INTERRUPTED
    except BrokenPipeError:  # the reader went away (`| head`): nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.FINE
    sys.exit(int(code or 0))

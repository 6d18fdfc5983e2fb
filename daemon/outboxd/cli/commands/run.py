"""`outboxd run`: the daemon, until a signal."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from outboxd.cli.config_paths import load_configuration, wanted_paths
from outboxd.cli.output import CommandFailed, ConfigPaths, ExitCode, JsonFlag, MorePaths, finish

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run")(_run)


def _run(config: ConfigPaths = None, more: MorePaths = None, as_json: JsonFlag = False) -> None:
    """Run the pipelines of a configuration until SIGTERM or SIGINT.

    The first signal drains and ends with 0 (1 when something was left unfinished); a second one ends at once with 143.
    """

    def body() -> None:
        code = _serve(wanted_paths(config, more))
        if code != 0:
            raise CommandFailed(
                "not everything in hand could be finished in time; it is done again at the next start",
                code="unclean_stop",
                suggestion="see the log for what was late; daemon.drain_timeout gives it longer",
            )

    finish("run", body, as_json=as_json)


def _serve(paths: Sequence[str]) -> int:
    from outboxd.config import ConfigurationOrigin
    from outboxd.http.server import PortUnavailable, servers
    from outboxd.registry import build_registry
    from outboxd.runtime.app import App
    from outboxd.runtime.collector import relax_collector
    from outboxd.runtime.exit import end_stuck_process
    from outboxd.runtime.loop import run
    from outboxd.telemetry.logs import configure_logs, set_redactor
    from outboxd.telemetry.redaction import Redactor

    # Handlers may stand in the working directory, behind what is installed, so that they cannot shadow it.
    if os.getcwd() not in sys.path:  # noqa: PTH109  # an entry of sys.path is a text
        sys.path.append(os.getcwd())  # noqa: PTH109
    registry = build_registry()
    configuration = load_configuration(paths, registry=registry)
    logs = configuration.telemetry.logs
    configure_logs(format=logs.format, level=logs.level)
    redactor = Redactor()
    set_redactor(redactor)
    app = App(
        configuration,
        registry=registry,
        surfaces=servers(configuration.http),
        origin=ConfigurationOrigin(paths, environ=os.environ, registry=registry),
        redactor=redactor,
    )
    relax_collector()
    try:
        code = run(app.run())
    except PortUnavailable as error:
        raise CommandFailed(
            error.message, exit_code=ExitCode.ENVIRONMENT, code=error.code, suggestion=error.suggestion
        ) from error
    end_stuck_process(code)
    return code

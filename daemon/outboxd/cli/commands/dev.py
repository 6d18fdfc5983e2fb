"""`outboxd dev`: a real Kafka and a real Postgres on this computer, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from outboxd.cli.output import CommandFailed, ExitCode, JsonFlag, finish
from outboxd.cli.tables import print_hint

if TYPE_CHECKING:
    from outboxd.dev import DevStack

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("dev")(_dev)


def _dev(
    folder: Annotated[Path, typer.Option("--folder", "-d", help="Where the servers keep their data.")] = Path(
        ".outboxd-dev"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Start Kafka and Postgres, print their addresses, and stop them with Ctrl-C. Data stays in the folder."""

    def body() -> Mapping[str, Any]:
        return asyncio.run(_serve(folder, as_json=as_json))

    finish("dev", body, as_json=as_json)


async def _serve(folder: Path, *, as_json: bool) -> Mapping[str, Any]:
    try:
        from outboxd.dev import DevServerFailed, DevStack
    except ImportError as error:
        raise CommandFailed(
            f"the development servers are not installed: {error}",
            exit_code=ExitCode.ENVIRONMENT,
            code="extra_missing",
            suggestion="pip install 'outboxd[dev]'",
        ) from error
    ending = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ending.set)
    if not as_json:
        print_hint(f"starting Kafka and Postgres in {folder} (the first time they are downloaded) ...")
    stack = DevStack(folder)
    starting = asyncio.create_task(stack.start(), name="start servers")
    waiting = asyncio.create_task(ending.wait(), name="wait for the end")
    try:
        await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return await _started(starting, waiting, as_json=as_json) if starting.done() else {}
    except DevServerFailed as error:
        raise CommandFailed(
            error.message, exit_code=ExitCode.ENVIRONMENT, code=error.code, suggestion=error.suggestion
        ) from error
    finally:
        starting.cancel()
        waiting.cancel()
        await asyncio.wait({starting, waiting})
        await stack.stop()


async def _started(
    starting: asyncio.Task[DevStack], waiting: asyncio.Task[Literal[True]], *, as_json: bool
) -> Mapping[str, str]:
    """Print where the servers are, then wait for the end."""
    stack = starting.result()
    addresses = {"kafka": stack.bootstrap_servers, "postgres": stack.postgres_dsn()}
    _show(addresses, as_json=as_json)
    await waiting
    return addresses


def _show(addresses: Mapping[str, str], *, as_json: bool) -> None:
    """The addresses, ready to be pasted into another terminal; with `--json` they come in the envelope at the end."""
    if as_json:
        return
    print(f"export KAFKA={addresses['kafka']}")
    print(f"export PGDSN={addresses['postgres']}")
    sys.stdout.flush()
    print_hint(f"both run as long as this command (process {os.getpid()}); Ctrl-C stops them, their data stays")

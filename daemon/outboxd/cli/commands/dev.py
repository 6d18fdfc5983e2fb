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
    topics: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", metavar="NAME[:PARTITIONS]", help="Make this topic where it is missing."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Start Kafka and Postgres, print their addresses, and stop them with Ctrl-C. Data stays in the folder."""

    def body() -> Mapping[str, Any]:
        wanted = dict(_topic(text) for text in topics or ())
        return asyncio.run(_serve(folder, wanted, as_json=as_json))

    finish("dev", body, as_json=as_json)


def _topic(text: str) -> tuple[str, int]:
    name, _, partitions = text.partition(":")
    if not name or not (partitions or "1").isdecimal() or int(partitions or "1") < 1:
        raise CommandFailed(
            f"--topic {text}: this is no topic",
            exit_code=ExitCode.INPUT,
            code="usage",
            suggestion="write --topic orders.paid, or --topic orders.paid:6 for six partitions",
        )
    return name, int(partitions or "1")


async def _serve(folder: Path, topics: Mapping[str, int], *, as_json: bool) -> Mapping[str, Any]:
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
        return await _started(starting, waiting, topics, as_json=as_json) if starting.done() else {}
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
    starting: asyncio.Task[DevStack],
    waiting: asyncio.Task[Literal[True]],
    topics: Mapping[str, int],
    *,
    as_json: bool,
) -> Mapping[str, str]:
    """Make the topics, print where the servers are, then wait for the end."""
    stack = starting.result()
    for name, partitions in topics.items():
        await stack.create_topic(name, partitions=partitions, exist_ok=True)
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

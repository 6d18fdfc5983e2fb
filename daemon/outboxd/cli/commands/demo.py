"""`outboxd demo`: the shop's story on real servers, told as it happens."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, cast

import typer

from outboxd.cli.output import CommandFailed, ExitCode, JsonFlag, finish

__all__ = ["Story", "register"]

_STORY: Final = "shop.demo"
"""The module that tells the story: it has ``tell``, as `Story` describes it."""


class Story(Protocol):
    """What the module of the story has."""

    def tell(self, folder: Path | None) -> Mapping[str, Any]:
        """Play the story on servers in the folder (None: one of its own, removed afterwards), printing as it goes.

        Gives what happened, as JSON can show it. Raises OutboxdError when the story does not come out as it should.
        """
        ...


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(_demo)


def _demo(
    folder: Annotated[
        Path | None, typer.Option("--folder", "-d", help="Keep the servers' data here; default: a folder of its own.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Play the shop's story on a real Kafka and a real Postgres: about a minute, and nothing stays behind."""

    def body() -> Mapping[str, Any]:
        story = _story()
        if not as_json:
            return story.tell(folder)
        with redirect_stdout(sys.stderr):  # standard output is the envelope's
            return story.tell(folder)

    finish("demo", body, as_json=as_json, show=lambda _: None)


def _story() -> Story:
    try:
        return cast("Story", importlib.import_module(_STORY))
    except ImportError as error:
        raise CommandFailed(
            f"the example of the demo is not installed: {error}",
            exit_code=ExitCode.ENVIRONMENT,
            code="example_missing",
            suggestion="in a checkout of the repository: pip install -e '.[dev]' -e examples/shop",
        ) from error

"""`outboxd migrate`: outboxd's own schema in every database that needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outboxd.cli.config_paths import load_configuration, wanted_paths
from outboxd.cli.output import ConfigPaths, JsonFlag, MorePaths, finish
from outboxd.cli.tables import print_hint

if TYPE_CHECKING:
    from outboxd.config import Configuration

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("migrate")(_migrate)


def _migrate(
    config: ConfigPaths = None,
    more: MorePaths = None,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL and change nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Bring the schema `outboxd` up to date in every Postgres connection that needs it. Running it again is harmless."""

    def body() -> list[dict[str, Any]]:
        configuration = load_configuration(wanted_paths(config, more))
        return _sql(configuration) if sql else _apply(configuration)

    finish("migrate", body, as_json=as_json, show=_show_sql if sql else _show_applied)


def _sql(configuration: Configuration) -> list[dict[str, Any]]:
    from outboxd.runtime.migration import migrations_sql

    return [{"connection": name, "sql": text} for name, text in migrations_sql(configuration).items()]


def _apply(configuration: Configuration) -> list[dict[str, Any]]:
    from outboxd.runtime.migration import migrate

    done = asyncio.run(migrate(configuration))
    return [{"connection": each.connection, "applied": list(each.applied)} for each in done]


def _show_sql(scripts: Sequence[Mapping[str, Any]]) -> None:
    for script in scripts:
        print(f"-- connection {script['connection']}")
        print(script["sql"])


def _show_applied(done: Sequence[Mapping[str, Any]]) -> None:
    if not done:
        print("no pipeline needs the schema: none has an outbox or a Postgres sink")
    for each in done:
        applied = ", ".join(each["applied"])
        print(f"{each['connection']}: " + (f"applied {applied}" if applied else "is up to date"))
    if done:
        print_hint("start the pipelines with: outboxd run -c PATH")

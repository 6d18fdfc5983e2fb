"""`outboxd config show`: the merged configuration, placeholders kept; `outboxd reload`: have a daemon read it now."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import typer
from ruamel.yaml import YAML

from outboxd.cli.client import DEFAULT_URL, DaemonClient, UrlOption
from outboxd.cli.config_paths import load_configuration, wanted_paths
from outboxd.cli.output import ConfigPaths, JsonFlag, MorePaths, finish
from outboxd.cli.tables import print_hint

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group `config`."""
    group = typer.Typer(help="What is configured.", rich_markup_mode=None)
    group.command("show")(show_configuration)
    app.add_typer(group, name="config")
    app.command("reload")(_reload)


def show_configuration(config: ConfigPaths = None, paths: MorePaths = None, as_json: JsonFlag = False) -> None:
    """Print the merged configuration as YAML: placeholders stay, secrets are hidden."""

    def body() -> Mapping[str, Any]:
        return load_configuration(wanted_paths(config, paths)).document

    finish("config show", body, as_json=as_json, show=_print_yaml)


def _print_yaml(document: Mapping[str, Any]) -> None:
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # the order of the files
    writer.width = 120
    writer.dump(dict(document), sys.stdout)


def _reload(url: UrlOption = DEFAULT_URL, as_json: JsonFlag = False) -> None:
    """Have a running daemon read its configuration now; a wrong one changes nothing, and exits 2 with every problem."""

    def body() -> Any:
        return DaemonClient(url).post("v1", "config", "reload")["reload"]

    finish("reload", body, as_json=as_json, show=_show_reload)


def _show_reload(reload: Mapping[str, Any]) -> None:
    moves = [(verb, reload[verb]) for verb in ("added", "changed", "removed") if reload[verb]]
    print("; ".join(f"{verb}: {', '.join(names)}" for verb, names in moves) or "nothing has changed")
    if reload["needs_restart"]:
        print_hint(f"these count from the daemon's next start on: {', '.join(reload['needs_restart'])}")
    elif moves:
        print_hint("follow it with: outboxd status")

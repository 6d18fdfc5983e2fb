"""`outboxd plugins list|show`: what is installed, who brings it, and what it can be told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from outboxd.cli.output import CommandFailed, ExitCode, JsonFlag, finish
from outboxd.config.suggestion import closest
from outboxd.registry import InstalledPlugin, build_registry

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the group `plugins`."""
    group = typer.Typer(help="What is installed.", rich_markup_mode=None)
    group.command("list")(list_plugins)
    group.command("show")(show_plugin)
    app.add_typer(group, name="plugins")


def list_plugins(as_json: JsonFlag = False) -> None:
    """List the installed plugins, and those that could not be loaded."""

    def body() -> Mapping[str, Any]:
        registry = build_registry()
        broken = [
            {
                "entry_point": each.entry_point,
                "distribution": each.distribution,
                "version": each.version,
                "reason": each.reason,
            }
            for each in registry.broken
        ]
        return {"plugins": [_row(plugin) for plugin in registry.plugins()], "broken": broken}

    def show(result: Mapping[str, Any]) -> None:
        print(f"{'NAME':<16}{'KIND':<15}{'DISTRIBUTION':<24}VERSION")
        for row in result["plugins"]:
            print(f"{row['name']:<16}{row['kind']:<15}{row['distribution']:<24}{row['version']}")
        for row in result["broken"]:
            print(f"not loaded: {row['entry_point']} of {row['distribution']} {row['version']}: {row['reason']}")
        print("\n`outboxd plugins show NAME` shows the settings of one.")

    finish("plugins list", body, as_json=as_json, show=show)


def show_plugin(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name as the YAML uses it.")],
    kind: Annotated[str | None, typer.Option("--kind", help="handler, action, classifier, sink, codec.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show a plugin and its settings; of a name that several kinds have, each."""

    def body() -> Mapping[str, Any]:
        installed = build_registry().plugins()
        found = [plugin for plugin in installed if plugin.name == name and kind in {None, plugin.kind}]
        if not found:
            raise CommandFailed(
                f"no plugin is called {name!r}",
                code="plugin_unknown",
                exit_code=ExitCode.INPUT,
                suggestion=closest(name, {plugin.name for plugin in installed if kind in {None, plugin.kind}}),
            )
        return {"plugins": [{**_row(plugin), "settings": plugin.settings.model_json_schema()} for plugin in found]}

    finish("plugins show", body, as_json=as_json, show=_print_plugins)


def _row(plugin: InstalledPlugin) -> Mapping[str, Any]:
    return {
        "name": plugin.name,
        "kind": plugin.kind,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "description": _first_line(plugin.implementation.__doc__),
    }


def _print_plugins(result: Mapping[str, Any]) -> None:
    for row in result["plugins"]:
        print(f"{row['kind']} {row['name']} ({row['distribution']} {row['version']})")
        print(f"  {row['description']}")
        settings = row["settings"]
        for key, schema in settings.get("properties", {}).items():
            need = "required" if key in settings.get("required", []) else f"default {schema.get('default')!r}"
            print(f"  {key}: {_type(schema)}, {need}")
            print(f"      {' '.join(schema.get('description', '').split())}")


def _type(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " | ".join(_type(form) for form in schema["anyOf"])
    return str(schema.get("type", "value"))


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]

"""`outboxd schema`: the JSON Schema of what is installed, or the reference page written from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from outboxd.cli.output import JsonFlag, finish
from outboxd.config.reference import reference_page
from outboxd.config.schema import json_schema
from outboxd.registry import build_registry

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add `schema`."""
    app.command("schema")(schema)


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write it to this file; an equal file is left alone.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="The reference page in Markdown instead, written from the schema.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Print the JSON Schema of the configuration, with the options of the installed plugins."""

    def body() -> Mapping[str, Any]:
        written = json_schema(build_registry())
        if output is None:
            return {"page": reference_page(written)} if page else written
        text = reference_page(written) if page else _text(written)
        is_changed = not output.exists() or output.read_text(encoding="utf-8") != text
        if is_changed:
            output.write_text(text, encoding="utf-8")
        return {"file": str(output), "changed": is_changed}

    def show(result: Mapping[str, Any]) -> None:
        if output is None:
            print(result["page"] if page else _text(result), end="")
        else:
            print(f"{output}: {'written' if result['changed'] else 'is up to date'}")

    finish("schema", body, as_json=as_json, show=show)


def _text(written: Mapping[str, Any]) -> str:
    return json.dumps(written, indent=2, ensure_ascii=False) + "\n"

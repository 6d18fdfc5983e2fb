"""What is generated is what is committed; `make docs` writes it anew."""

from __future__ import annotations

import json
from pathlib import Path

from outboxd.config.reference import reference_page
from outboxd.config.schema import json_schema
from outboxd.registry import build_registry

UNDER_A_LATER_KEY = {"BatchSettings", "ColumnSettings", "FloodSettings", "PluginReference", "RetentionSettings"}
"""Models that only a later feature uses have no table yet; a reference is what a plugin's `type` and options become."""

ROOT = Path(__file__).parents[2]


def test_the_schema_is_up_to_date() -> None:
    written = json.loads((ROOT / "configs" / "schema.json").read_text("utf-8"))
    assert written == json_schema(build_registry())


def test_the_reference_page_is_up_to_date() -> None:
    assert (ROOT / "docs" / "configuration.md").read_text("utf-8") == reference_page(json_schema(build_registry()))


def test_the_reference_page_has_every_key_of_the_schema() -> None:
    schema = json_schema(build_registry())
    page = reference_page(schema)
    missing = [
        f"{name}.{key}"
        for name, model in schema["$defs"].items()
        if name not in UNDER_A_LATER_KEY
        for form in (model, *model.get("anyOf", ()))
        for key, value in form.get("properties", {}).items()
        if key != "type" and not value.get("x-outboxd-later") and f"| `{key}` |" not in page
    ]
    assert missing == []

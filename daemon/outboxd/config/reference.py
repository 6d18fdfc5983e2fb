"""The reference page of the configuration, written from the schema: every key, its values, its default, its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

__all__ = ["reference_page"]

Schema: TypeAlias = Mapping[str, Any]

_HEAD: Final = """# Configuration

Every key, its default and its meaning, written from what `outboxd schema` says (`make docs`); do not edit by hand.

`-c` takes files and folders; of a folder all `*.yaml`, hidden ones left out. They are merged by their top-level keys, and the
same connection or pipeline in two files is an error that names both places. YAML 1.2: `on` and `no` are strings. Unknown
keys are errors with a suggestion; keys that start with `x-` are free at every level. `${env:NAME}`, `${env:NAME:default}`,
`${file:/path}` and `${file:/path:key}` stand for values; `$$` is a dollar. Durations (`200ms`, `5s`, `2m`, `1h`, `7d`) and sizes
(`64KiB`, `1MiB`) carry their unit.

Keys marked *later* are part of the language, and refused by `outboxd check` until their feature is there.
"""
_WORDS: Final = {
    "integer": "whole number",
    "number": "number",
    "boolean": "`true`, `false`",
    "array": "list",
    "object": "map",
}
_PLACES: Final = (
    ("The process", {"daemon": "DaemonSettings", "http": "HttpSettings", "telemetry": "TelemetrySettings"}),
    ("Connections", {"connections.NAME (postgres)": "PostgresSettings", "connections.NAME (kafka)": "KafkaSettings"}),
    ("Relays", {"pipelines.NAME": "RelaySettings"}),
    ("Consumers", {"pipelines.NAME": "ConsumerSettings"}),
)


def reference_page(schema: Schema) -> str:
    """Markdown for a schema that `json_schema` made."""
    definitions: Mapping[str, Schema] = schema["$defs"]
    lines = [_HEAD]
    for title, places in _PLACES:
        lines.append(f"## {title}\n")
        for path, name in places.items():
            lines += _model(path, definitions[name], definitions)
    return "\n".join(lines).rstrip() + "\n"


def _model(path: str, model: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    forms = [form for form in model.get("anyOf", ()) if "properties" in form]
    if forms:
        for form in forms:
            yield from _table(f"{path} (`type: {form['title']}`)", form, definitions)
    else:
        yield from _table(path, model, definitions)


def _table(title: str, model: Schema, definitions: Mapping[str, Schema]) -> Iterator[str]:
    properties: Mapping[str, Schema] = model.get("properties", {})
    path = title.partition(" (")[0]
    nested = {key: found for key, value in properties.items() if (found := _nested(value, definitions)) is not None}
    yield f"### {title}\n\n{_sentence(model.get('description', ''))}\n"
    rows = [
        f"| `{key}` | {_values(value, key in nested)} | {_default(key, value, model, key in nested)} | {_meaning(value, nested.get(key))} |"
        for key, value in properties.items()
        if key != "type" or "const" not in value
    ]
    if rows:
        yield "\n".join(["| key | values | default | meaning |", "| --- | --- | --- | --- |", *rows]) + "\n"
    for key, (suffix, model_below) in nested.items():
        yield from _model(f"{path}.{key}{suffix}", model_below, definitions)


def _nested(value: Schema, definitions: Mapping[str, Schema]) -> tuple[str, Schema] | None:
    """The model that a key holds, with `[]` for a list of them and `.NAME` for a map; None for a plain value."""
    if value.get("x-outboxd-later"):
        return None
    for suffix, inner in _inner(value):
        name = str(inner.get("$ref", "")).rpartition("/")[2]
        found = definitions.get(name)
        if found is not None and ("properties" in found or _has_forms(found)):
            return suffix, found
    return None


def _has_forms(found: Schema) -> bool:
    return any("properties" in form for form in found.get("anyOf", ()))


def _inner(value: Schema) -> Iterator[tuple[str, Schema]]:
    yield "", value
    for form in value.get("anyOf", ()):
        yield from _inner(form)
    if isinstance(value.get("items"), dict):
        yield "[]", value["items"]
    named = [value.get("additionalProperties"), *(value.get("patternProperties") or {}).values()]
    for form in named:
        if isinstance(form, dict):
            yield from ((".NAME", found) for _, found in _inner(form))


def _values(value: Schema, is_nested: bool) -> str:
    if is_nested:
        return "see below"
    words: list[str] = []
    for _, form in _inner(value):
        if "enum" in form:
            words += [f"`{choice}`" for choice in form["enum"]]
        elif "const" in form:
            words.append(f"`{form['const']}`")
        elif "examples" in form:
            words.append("duration" if "ms" in form["pattern"] else "size")
        elif form.get("type") in _WORDS:
            words.append(_WORDS[form["type"]])
        elif form.get("type") == "string" and "${" not in str(form.get("pattern", "")).replace("\\", ""):
            words.append("text")
    return ", ".join(dict.fromkeys(words)) or "text"


def _default(key: str, value: Schema, model: Schema, is_nested: bool) -> str:
    if key in model.get("required", ()):
        return "required"
    default = value.get("default")
    if is_nested or default is None or default in ("", [], {}):
        return ""
    return f"`{default if isinstance(default, str) else json.dumps(default)}`"


def _meaning(value: Schema, below: tuple[str, Schema] | None) -> str:
    text = _sentence(value.get("description") or (below[1].get("description", "") if below else ""))
    return f"*later* {text}" if value.get("x-outboxd-later") else text


def _sentence(text: str | Sequence[str]) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")

"""The JSON Schema of what is installed, plugins' options included, so that an editor completes and checks the YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from outboxd.api.references import PluginKind
from outboxd.api.settings import format_duration, parse_size
from outboxd.config.load import CONNECTION_TYPES, SECTIONS
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.registry import InstalledPlugin, Registry

__all__ = ["json_schema"]

Schema: TypeAlias = dict[str, Any]

_PLUGIN: Final = "x-outboxd-plugin"
_PLACEHOLDER: Final[Schema] = {"type": "string", "pattern": r"\$\{[A-Za-z][A-Za-z0-9_-]*:"}
"""Any scalar may come from a placeholder."""
_FREE: Final[Schema] = {"^x-": {}}
_NUMBERS: Final = frozenset({"integer", "number", "boolean"})
_NARROWING: Final = frozenset({"pattern", "enum", "const", "minLength", "maxLength", "format"})
_SIZE_UNITS: Final = ("GiB", "MiB", "KiB", "B")


class _Generator(GenerateJsonSchema):
    """Writes defaults as the YAML does."""

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, timedelta):
            return format_duration(dft)
        if isinstance(dft, BaseModel):
            return self.encode_default(dft.model_dump(exclude_defaults=True))
        return super().encode_default(dft)


def json_schema(registry: Registry) -> Schema:
    """The schema of one configuration file, or of all of them merged (draft 2020-12)."""
    plugins = [plugin for plugin in registry.plugins() if plugin.kind != "config_scheme"]
    models: list[type[BaseModel]] = [*SECTIONS.values(), *CONNECTION_TYPES.values(), RelaySettings, ConsumerSettings]
    models += list({plugin.settings: None for plugin in plugins})
    references, written = models_json_schema(
        [(model, "validation") for model in models], schema_generator=_Generator, ref_template="#/$defs/{model}"
    )
    refs: dict[type[BaseModel], Schema] = {model: schema for (model, _), schema in references.items()}  # type: ignore[misc]
    definitions: dict[str, Schema] = written["$defs"]
    for name, definition in list(definitions.items()):
        if _PLUGIN in definition:
            definitions[name] = _alternatives(definition, plugins, refs, definitions)
    properties: Schema = {name: refs[model] for name, model in SECTIONS.items()}
    properties["connections"] = _named([refs[model] for model in CONNECTION_TYPES.values()])
    properties["pipelines"] = _named([refs[RelaySettings], refs[ConsumerSettings]])
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "outboxd",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    schema["$defs"] = {name: definitions[name] for name in sorted(_reachable(schema, definitions))}
    finished: Schema = _finished(schema)
    return finished


def _reachable(schema: Any, definitions: Mapping[str, Schema]) -> set[str]:
    """The definitions that are referred to; plugins' own are written into the places that name them."""
    found: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            name = str(item.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                waiting.append(definitions[name])
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item
    return found


def _named(forms: Sequence[Schema]) -> Schema:
    return {"type": ["object", "null"], "additionalProperties": {"anyOf": list(forms)}, "patternProperties": _FREE}


def _alternatives(
    use: Schema,
    plugins: Iterable[InstalledPlugin],
    refs: Mapping[type[BaseModel], Schema],
    definitions: Mapping[str, Schema],
) -> Schema:
    """One form for each installed plugin: its options beside the keys that every plugin has in this place."""
    kind: PluginKind = use[_PLUGIN]
    forms: list[Schema] = []
    short: list[str] = []
    for plugin in plugins:
        if plugin.kind != kind:
            continue
        own = definitions[refs[plugin.settings]["$ref"].rpartition("/")[2]]
        options = own.get("properties", {})
        form = {
            "type": "object",
            "title": plugin.name,
            "description": own.get("description", ""),
            "properties": {"type": {"const": plugin.name}, **options, **use.get("properties", {})},
            "required": ["type", *own.get("required", []), *use.get("required", [])],
            "additionalProperties": False,
        }
        forms.append(form)
        if not own.get("required"):
            short.append(plugin.name)
    if kind == "codec" and short:
        forms.append({"enum": sorted(set(short))})
    return {"description": use.get("description", ""), "anyOf": forms}


def _finished(schema: Any) -> Any:
    """Placeholders are allowed for scalars, `x-` keys in objects; sizes are written with their unit."""
    if isinstance(schema, list):
        return [_finished(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    done: Schema = {}
    for key, value in schema.items():
        # The names of properties and definitions are not keywords.
        if key in {"properties", "$defs", "patternProperties"}:
            done[key] = {name: _finished(item) for name, item in value.items()}
        else:
            done[key] = value if key in {"default", "enum", "const", "examples"} else _finished(value)
    if done.get("additionalProperties") is False:
        done["patternProperties"] = _FREE
    if isinstance(done.get("default"), int) and "KiB" in str(done.get("pattern")):
        done["default"] = _size(done["default"])
    kind = done.get("type")
    if isinstance(kind, str) and (kind in _NUMBERS or (kind == "string" and _NARROWING & done.keys())):
        return _with_placeholder(done)
    return done


def _with_placeholder(schema: Schema) -> Schema:
    outside: Schema = {key: schema.pop(key) for key in ("title", "description", "default") if key in schema}
    return {**outside, "anyOf": [schema, _PLACEHOLDER]}


def _size(value: int) -> str:
    unit = next(unit for unit in _SIZE_UNITS if value % parse_size(f"1{unit}") == 0)
    return f"{value // parse_size(f'1{unit}')}{unit}"

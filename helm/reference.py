"""Writes what is generated of the chart from its commented `values.yaml`: `values.schema.json` and the table of the README.

    python -m helm.reference          # write both
    python -m helm.reference --check  # exit 1 when one of them is stale

A comment above a key is its meaning. A comment line that starts with `# @` is its JSON Schema, as YAML, where the default alone
does not tell; below such a key nothing is described. `# ==` begins a section of the table.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

__all__ = ["README", "SCHEMA", "Value", "described", "readme", "schema"]

_CHART: Final = Path(__file__).with_name("outboxd")
README: Final = _CHART / "README.md"
SCHEMA: Final = _CHART / "values.schema.json"
_BEGIN: Final = "<!-- values: written by `make docs` from values.yaml -->"
_KEY: Final = re.compile(r"^( *)([A-Za-z][\w]*):(?: |$)")
_TYPES: Final[Mapping[type, str]] = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One documented key of `values.yaml`."""

    path: tuple[str, ...]
    section: str
    meaning: str
    schema: Mapping[str, Any] | None
    """What was written with `# @`; None for a key whose default tells, or that has documented keys below it."""
    default: Any

    @property
    def name(self) -> str:
        """The dotted path."""
        return ".".join(self.path)

    @property
    def is_group(self) -> bool:
        """Whether it only holds other documented keys."""
        return self.schema is None and isinstance(self.default, dict)


def described() -> Sequence[Value]:
    """Every documented key in the order of the file. Raises ValueError for a key without a meaning."""
    text = (_CHART / "values.yaml").read_text("utf-8")
    return list(_values(text.splitlines(), _yaml(text)))


def _values(lines: Sequence[str], data: Any) -> Iterator[Value]:
    path: list[tuple[int, str]] = []
    section, comments, rules = "", list[str](), list[str]()
    opaque: int | None = None
    for line in lines:
        stripped = line.strip()
        if not stripped:
            comments, rules = [], []
        elif stripped.startswith("# =="):
            section = stripped.removeprefix("# ==").strip()
        elif stripped.startswith("# @"):
            rules.append(stripped.removeprefix("# @").strip())
        elif stripped.startswith("#"):
            comments.append(stripped.removeprefix("#").strip())
        elif (match := _KEY.match(line)) is not None and (opaque is None or len(match[1]) <= opaque):
            indent = len(match[1])
            path = [*((depth, name) for depth, name in path if depth < indent), (indent, match[2])]
            names = tuple(name for _, name in path)
            value = Value(
                path=names,
                section=section,
                meaning=" ".join(comments),
                schema=_yaml(" ".join(rules)) if rules else None,
                default=_at(data, names),
            )
            if not value.meaning and not value.is_group:
                raise ValueError(f"values.yaml: {value.name} has no comment that says what it means")
            opaque = None if value.is_group else indent
            comments, rules = [], []
            yield value


def schema() -> dict[str, Any]:
    """The JSON Schema of the values: strict, but for what people bring in their own words."""
    root: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
    for value in described():
        parent = _parent(root, value.path)
        parent["properties"][value.path[-1]] = _schema_of(value)
    # A renamed key has to get as far as the template that names the new one.
    for name, instead in sorted(_yaml((_CHART / "files" / "renamed.yaml").read_text("utf-8")).items()):
        path = tuple(name.split("."))
        _parent(root, path)["properties"].setdefault(path[-1], {"description": f"No value: use {instead}."})
    root["properties"]["global"] = {"type": "object", "description": "What a chart around this one shares; not used."}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart outboxd", **root}


def _parent(root: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for name in path[:-1]:
        root = root["properties"][name]
    return root


def _schema_of(value: Value) -> dict[str, Any]:
    found: dict[str, Any] = {"description": value.meaning} if value.meaning else {}
    if value.is_group:
        return found | {"type": "object", "additionalProperties": False, "properties": {}}
    written = dict(value.schema or {})
    if "type" not in written and "enum" not in written:
        written = {"type": _TYPES[type(value.default)], **written}
    return found | written


def readme() -> str:
    """The chart's README with today's table."""
    head, separator, _ = README.read_text("utf-8").partition(_BEGIN)
    if not separator:
        raise ValueError(f"{README} has no line {_BEGIN!r}")
    return head + _BEGIN + "\n" + "\n".join(_table()) + "\n"


def _table() -> Iterator[str]:
    section = ""
    for value in described():
        if value.section != section:
            section = value.section
            yield from ("", f"### {section}", "", "| key | default | meaning |", "| --- | --- | --- |")
        if not value.is_group:
            meaning = value.meaning.replace("|", "\\|")
            yield f"| `{value.name}` | {_shown(value.default)} | {meaning} |"


def _shown(default: Any) -> str:
    text = json.dumps(default, ensure_ascii=False).replace("|", "\\|")
    return "" if default in ("", [], {}, None) else f"`{text}`"


def _at(data: Any, path: Sequence[str]) -> Any:
    for name in path:
        data = data[name]
    return data


def _yaml(text: str) -> Any:
    # As Helm reads it: YAML 1.1.
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)
    return reader.load(text)


def main(arguments: Sequence[str]) -> int:
    """Write both files, or say which is stale."""
    wanted = {SCHEMA: json.dumps(schema(), indent=2, ensure_ascii=False) + "\n", README: readme()}
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path} is stale: run `make docs`", file=sys.stderr)
        return bool(stale)
    for path in stale:
        path.write_text(wanted[path], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The merged configuration before validation: values, how they were written, where, and what came from outside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from outboxd.config.problems import NOWHERE, KeyPath, Place, Problem
from outboxd.config.yaml import Value

__all__ = ["Source", "at", "in_plugin_options", "put", "without_free_keys"]

_FREE: Final = "x-"
_PLUGIN_PARTS: Final = re.compile(
    r"pipelines/[^/]+/(handler|consume/decode|dead_letters/chain/\d+|publish/topics/[^/]+/after_publish/\d+)"
)
"""Where plugins' own options begin; what is nested in them belongs to the plugin."""


@dataclass(slots=True, kw_only=True)
class Source:
    """Filled step by step by the loader.

    ``data`` holds resolved values, ``shown`` the same with placeholders; ``outside`` the values that came from the
    environment, files or plugin schemes; ``failed`` the paths whose placeholder could not be resolved.
    """

    data: dict[str, Value] = field(default_factory=dict)
    shown: dict[str, Value] = field(default_factory=dict)
    values: dict[KeyPath, Place] = field(default_factory=dict)
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    outside: dict[KeyPath, tuple[str, ...]] = field(default_factory=dict)
    failed: set[KeyPath] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: KeyPath) -> Place:
        """Where a value stands; of a mapping or list, and of what nobody wrote, the key that holds it.

        One item for a list of it stands where the item does.
        """
        for length in range(len(path), 0, -1):
            part = path[:length]
            value = at(self.data, part)
            is_scalar = not isinstance(value, dict | list) and (value is not None or part == path)
            order = (self.values, self.keys) if is_scalar else (self.keys, self.values)
            for places in order:
                if part in places:
                    return places[part]
        return self.values.get((), NOWHERE)

    def key_place(self, path: KeyPath) -> Place:
        """Where a key stands."""
        return self.keys.get(path) or self.place(path)

    def text(self, path: KeyPath) -> str:
        """A value as it was written, placeholders kept: what messages may show."""
        return str(at(self.shown, path))

    def outside_at(self, path: KeyPath) -> Iterator[str]:
        """What came from outside at this path, below it, or in the one text that it was read from."""
        for where, values in self.outside.items():
            if where[: len(path)] == path or path[: len(where)] == where:
                yield from values

    def has_failed(self, path: KeyPath) -> bool:
        """True when a placeholder at this path, above or below it could not be resolved."""
        return any(path[: len(where)] == where or where[: len(path)] == path for where in self.failed)


def at(value: Value, path: KeyPath) -> Value:
    """The value at a path; None where there is none."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def put(value: Value, path: KeyPath, new: Value) -> None:
    """Set the value at a path; mappings on the way are made where there is nothing."""
    step, rest = path[0], path[1:]
    if isinstance(value, dict) and isinstance(step, str):
        if not rest:
            value[step] = new
            return
        if value.get(step) is None:
            value[step] = {}
        put(value[step], rest, new)
    elif isinstance(value, list) and isinstance(step, int):
        if rest:
            put(value[step], rest, new)
        else:
            value[step] = new


def without_free_keys(value: Value, path: KeyPath = ()) -> Value:
    """The value without keys that start with `x-`; deep inside a plugin's options they are the plugin's own."""
    if in_plugin_options(path):
        return value
    if isinstance(value, dict):
        return {key: without_free_keys(item, (*path, key)) for key, item in value.items() if not key.startswith(_FREE)}
    if isinstance(value, list):
        return [without_free_keys(item, (*path, index)) for index, item in enumerate(value)]
    return value


def in_plugin_options(path: KeyPath) -> bool:
    """True for what stands below a place that names a plugin: options, and what is nested in them."""
    match = _PLUGIN_PARTS.match("/".join(str(step).replace("/", " ") for step in path))
    return match is not None and len(path) > match[0].count("/") + 1

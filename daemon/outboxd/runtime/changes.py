"""What is different between two configurations, by what the settings mean, not by how they are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, SecretStr

from outboxd.api.references import PluginReference
from outboxd.config import Configuration
from outboxd.config.reflection import connection_names, named_files

__all__ = ["Changes", "changes", "meaning"]

_PROCESS: Final = ("daemon", "http", "telemetry")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Pipelines by name, sorted; ``rewritten`` have other settings of their own, ``reconnected`` another connection."""

    added: Sequence[str]
    rewritten: Sequence[str]
    reconnected: Sequence[str]
    replaced: Sequence[str]
    """A relay that is a consumer now, or the other way round."""
    removed: Sequence[str]
    connections: AbstractSet[str]
    """Connections that mean something else now, were added or removed."""
    needs_restart: Sequence[str]
    """Keys of the process's own settings that are different, dotted."""

    @property
    def changed(self) -> Sequence[str]:
        """Every pipeline that restarts."""
        return sorted({*self.rewritten, *self.reconnected, *self.replaced})


def changes(before: Configuration, after: Configuration, *, used: Callable[[str], AbstractSet[str]]) -> Changes:
    """From ``before`` to ``after``; ``used`` tells which connections a pipeline has taken beside those that it names."""
    connections = _changed_connections(before, after)
    common = sorted(before.pipelines.keys() & after.pipelines.keys())
    replaced = [name for name in common if type(before.pipelines[name]) is not type(after.pipelines[name])]
    rewritten = [
        name
        for name in common
        if name not in replaced and meaning(before.pipelines[name]) != meaning(after.pipelines[name])
    ]
    others = [name for name in common if name not in replaced and name not in rewritten]
    return Changes(
        added=sorted(after.pipelines.keys() - before.pipelines.keys()),
        rewritten=rewritten,
        reconnected=[name for name in others if connections & (_named(after, name) | used(name))],
        replaced=replaced,
        removed=sorted(before.pipelines.keys() - after.pipelines.keys()),
        connections=connections,
        needs_restart=[
            key
            for section in _PROCESS
            for key in _different(getattr(before, section), getattr(after, section), section)
        ],
    )


def meaning(value: object) -> object:
    """Settings as plain values that are equal when they mean the same: a default that was written out is no change."""
    match value:
        case SecretStr():
            return value.get_secret_value()
        case PluginReference():
            return (value.kind, value.type, meaning(value.settings))
        case BaseModel():
            return (type(value), {name: meaning(getattr(value, name)) for name in type(value).model_fields})
        case Mapping():
            return {key: meaning(item) for key, item in value.items()}
        case list() | tuple():
            return [meaning(item) for item in value]
        case _:
            return value


def _changed_connections(before: Configuration, after: Configuration) -> AbstractSet[str]:
    def of(configuration: Configuration, name: str) -> object:
        settings = configuration.connections.get(name)
        files = {os.path.abspath(path) for path in named_files(settings)}  # noqa: PTH100  # as it was noted
        # A certificate is part of the connection: a new one is used only by new clients.
        return meaning(settings), {place: state for place, state in configuration.seen.items() if place.path in files}

    names = before.connections.keys() | after.connections.keys()
    return frozenset(name for name in names if of(before, name) != of(after, name))


def _named(configuration: Configuration, pipeline: str) -> AbstractSet[str]:
    return {name for _, name, _ in connection_names(configuration.pipelines[pipeline], ())}


def _different(before: BaseModel, after: BaseModel, path: str) -> Iterator[str]:
    for name in type(before).model_fields:
        one, two = getattr(before, name), getattr(after, name)
        if isinstance(one, BaseModel) and isinstance(two, BaseModel):
            yield from _different(one, two, f"{path}.{name}")
        elif meaning(one) != meaning(two):
            yield f"{path}.{name}"

"""Loads a configuration: files, placeholders, process settings, validation, cross-checks; every problem at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar, cast

from pydantic import BaseModel

from outboxd.api.settings import ConnectionRef
from outboxd.config.configuration import Configuration, PipelineSettings, shown_document
from outboxd.config.cross_checks import check_connections, check_consumers, check_relays
from outboxd.config.defaults import Connection, default_group, with_default_chain
from outboxd.config.environment import overlay_process_settings
from outboxd.config.footprint import Footprint
from outboxd.config.interpolation import Scheme
from outboxd.config.problems import ConfigurationInvalid, KeyPath, Problem
from outboxd.config.process_settings import DaemonSettings, HttpSettings
from outboxd.config.reading import find_files, interpolate_source, read_files
from outboxd.config.reflection import connection_names, named_files, written_names
from outboxd.config.source import Source, at
from outboxd.config.suggestion import closest
from outboxd.config.validation import validate
from outboxd.config.yaml import Value
from outboxd.kafka.settings import KafkaSettings
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.postgres.settings import PostgresSettings
from outboxd.registry import Registry
from outboxd.telemetry.settings import TelemetrySettings

__all__ = ["CONNECTION_TYPES", "SECTIONS", "load"]

SECTIONS: Final[Mapping[str, type[BaseModel]]] = {
    "daemon": DaemonSettings,
    "http": HttpSettings,
    "telemetry": TelemetrySettings,
}
"""The sections of the process itself."""
CONNECTION_TYPES: Final[Mapping[str, type[BaseModel]]] = {"kafka": KafkaSettings, "postgres": PostgresSettings}
_TOP_LEVEL: Final = (*SECTIONS, "connections", "pipelines")
_PIPELINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""Safe as a consumer group, in URLs, metrics and file names."""
_S = TypeVar("_S")


def load(
    paths: Sequence[Path | str],
    *,
    environ: Mapping[str, str],
    registry: Registry,
    overrides: Mapping[str, str] | None = None,
    footprint: Footprint | None = None,
) -> Configuration:
    """The configuration in these files and folders.

    ``environ`` serves `${env:...}` and the settings of the process (`OUTBOXD_HTTP__PORT`); ``overrides`` are settings
    of the process from the command line by dotted key. ``footprint`` remembers what was read, whatever comes of it.
    Raises ConfigurationInvalid with everything that is wrong.
    """
    problems: list[Problem] = []
    footprint = footprint or Footprint()
    files = find_files([Path(path) for path in paths], problems, footprint)
    source = read_files(files, problems, footprint)
    interpolate_source(source, environ, _schemes(registry), footprint)
    overlay_process_settings(source, environ, overrides or {}, footprint)
    loader = _Loader(source, registry, footprint)
    configuration = loader.configuration(files)
    if problems or source.problems or configuration is None:
        raise ConfigurationInvalid([*problems, *source.problems])
    return configuration


def _schemes(registry: Registry) -> Mapping[str, Scheme]:
    return {plugin.name: _lazily(plugin.implementation) for plugin in registry.plugins("config_scheme")}


def _lazily(implementation: type) -> Scheme:
    """Made when first asked, so that a scheme nobody uses cannot fail."""

    def resolve(argument: str) -> str:
        scheme: Scheme = implementation()
        return scheme(argument)

    return resolve


class _Loader:
    """Validates one source part by part; what is wrong in one part hides nothing in another."""

    def __init__(self, source: Source, registry: Registry, footprint: Footprint) -> None:
        self._source = source
        self._registry = registry
        self._footprint = footprint
        self._parts: dict[KeyPath, object] = {}
        self._refused: dict[KeyPath, type[BaseModel]] = {}

    def configuration(self, files: Sequence[Path]) -> Configuration | None:
        self._check_top_level()
        sections = {name: self._part(model, (name,)) for name, model in SECTIONS.items()}
        connections = {name: self._connection(name) for name in self._entries("connections")}
        pipelines = {name: self._pipeline(name) for name in self._entries("pipelines")}
        consumers = {
            name: with_default_chain(settings, _valid(connections), self._registry)
            for name, settings in pipelines.items()
            if isinstance(settings, ConsumerSettings)
        }
        relays = {name: settings for name, settings in pipelines.items() if isinstance(settings, RelaySettings)}
        self._note(check_connections(self._named(), connections, self._source))
        self._note(check_consumers(consumers, connections, self._source, self._registry))
        self._note(check_relays(relays, connections, self._source, self._registry))
        if self._source.problems or None in {*map(type, sections.values())}:
            return None
        for connection in _valid(connections).values():
            for path in named_files(connection):
                self._footprint.note(Path(path))
        return Configuration(
            daemon=cast("DaemonSettings", sections["daemon"]),
            http=cast("HttpSettings", sections["http"]),
            telemetry=cast("TelemetrySettings", sections["telemetry"]),
            connections=_valid(connections),
            pipelines={**_valid(pipelines), **consumers},
            files=tuple(files),
            document=shown_document(self._source, self._parts),
            seen=self._footprint.seen,
        )

    def _named(self) -> Iterator[tuple[KeyPath, str, ConnectionRef]]:
        """Every connection that is named, also in parts that are wrong for another reason."""
        for path, part in self._parts.items():
            yield from connection_names(part, path)
        for path, model in self._refused.items():
            yield from written_names(model, at(self._source.data, path), path, self._registry)

    def _note(self, problems: Iterable[Problem]) -> None:
        self._source.problems += [problem for problem in problems if not self._source.has_failed(problem.path)]

    def _check_top_level(self) -> None:
        for key in self._source.data:
            if key not in _TOP_LEVEL:
                unused = [name for name in _TOP_LEVEL if name not in self._source.data]
                self._problem((key,), "unknown_key", "there is no such key", closest(key, unused))

    def _entries(self, section: str) -> Sequence[str]:
        content = self._source.data.get(section)
        if section == "pipelines" and content is None and section in self._source.data:
            # A template that rendered nothing looks like this; taken for "no pipelines" it would end all of them.
            self._problem((section,), "section_empty", "is empty", "write `pipelines: {}` when there shall be none")
        if content is not None and not isinstance(content, dict):
            self._problem(
                (section,), "wrong_type", "must be a mapping of keys to values", "write each under a name of its own"
            )
        return list(content) if isinstance(content, dict) else []

    def _part(self, model: type[BaseModel], path: KeyPath) -> BaseModel | None:
        made = validate(model, self._source, path, self._registry)
        if made is None:
            self._refused[path] = model
        else:
            self._parts[path] = made
        return made

    def _content(self, path: KeyPath) -> dict[str, Value] | None:
        """The mapping of an entry; None, and a problem, for anything else."""
        content = cast("dict[str, Value]", self._source.data[str(path[0])])[str(path[1])]
        if isinstance(content, dict):
            return content
        self._problem(path, "wrong_type", "must be a mapping of keys to values", "indent its keys below its name")
        return None

    def _connection(self, name: str) -> Connection | None:
        path: KeyPath = ("connections", name)
        content = self._content(path)
        if content is None:
            return None
        kind = content.get("type")
        if kind is None:
            self._problem((*path, "type"), "missing_key", "the key is missing", "add `type: postgres` or `type: kafka`")
        elif kind not in CONNECTION_TYPES:
            hint = closest(self._source.text((*path, "type")), CONNECTION_TYPES)
            self._problem((*path, "type"), "unknown_value", "there is no such type of connection", hint)
        else:
            return cast("Connection | None", self._part(CONNECTION_TYPES[str(kind)], path))
        return None

    def _pipeline(self, name: str) -> PipelineSettings | None:
        path: KeyPath = ("pipelines", name)
        content = self._content(path)
        if content is None:
            return None
        if not _PIPELINE_NAME.fullmatch(name):
            self._problem(
                path, "wrong_format", "is no name for a pipeline", "use letters, digits, dots, underscores and hyphens"
            )
            return None
        is_relay = bool({"outbox", "publish"} & content.keys())
        is_consumer = bool({"consume", "handler"} & content.keys())
        if is_relay == is_consumer:
            self._problem(
                path,
                "pipeline_kind",
                "is both a relay and a consumer" if is_relay else "is neither a relay nor a consumer",
                "a relay has `outbox` and `publish`, a consumer `consume` and `handler`",
            )
            return None
        if is_consumer:
            default_group(self._source, name)
        model = RelaySettings if is_relay else ConsumerSettings
        return cast("PipelineSettings | None", self._part(model, path))

    def _problem(self, path: KeyPath, code: str, message: str, suggestion: str) -> None:
        place = self._source.key_place(path)
        problem = Problem(place=place, code=code, message=message, suggestion=suggestion, path=path)
        if not self._source.has_failed(path):
            self._source.problems.append(problem)


def _valid(parts: Mapping[str, _S | None]) -> dict[str, _S]:
    return {name: part for name, part in parts.items() if part is not None}

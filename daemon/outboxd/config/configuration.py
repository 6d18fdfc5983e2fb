"""A whole, valid configuration, and the document that may be shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from outboxd.config.defaults import Connection
from outboxd.config.footprint import Seen
from outboxd.config.problems import KeyPath
from outboxd.config.process_settings import DaemonSettings, HttpSettings
from outboxd.config.reflection import secret_paths
from outboxd.config.source import Source, at, put
from outboxd.config.yaml import Value
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.telemetry.redaction import Redactor
from outboxd.telemetry.settings import TelemetrySettings

__all__ = ["HIDDEN", "Configuration", "PipelineSettings", "shown_document"]

PipelineSettings: TypeAlias = RelaySettings | ConsumerSettings
HIDDEN: Final = "***"
"""Stands for a secret that was written into the YAML itself."""
_PLACEHOLDER: Final = re.compile(r"\$\{([^}:]*):([^}:]*)(:[^}]*)?\}")
_SECRET_NAME: Final = re.compile(r"password|passwd|secret|token|credential|api_?key|private_?key", re.IGNORECASE)
_REDACTOR: Final = Redactor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that was configured, valid as far as it can be known without a server.

    ``document`` is the merged YAML as it may be shown: placeholders kept, secrets hidden. ``seen`` is what was read
    for it: the files themselves, and those that placeholders and connections name.
    """

    daemon: DaemonSettings
    http: HttpSettings
    telemetry: TelemetrySettings
    connections: Mapping[str, Connection]
    pipelines: Mapping[str, PipelineSettings]
    files: tuple[Path, ...] = ()
    document: Mapping[str, Value] = field(default_factory=dict, repr=False)
    seen: Seen = field(default_factory=dict, repr=False, compare=False)


def shown_document(source: Source, settings: Mapping[KeyPath, object]) -> dict[str, Value]:
    """The source with placeholders kept and literal secrets hidden; ``settings`` are the models by path."""
    document = source.shown
    secrets = {path for where, model in settings.items() for path in secret_paths(model, where)}
    secrets |= set(_suspects(document, ()))
    for path in secrets:
        written = at(document, path)
        if written is not None:
            put(document, path, _masked(str(written)))
    for path, text in list(_texts(document, ())):
        put(document, path, _REDACTOR.text(text))
    return document


def _masked(text: str) -> str:
    """The placeholders of a text, without defaults, and nothing of what stands around them."""
    masked, end = "", 0
    for match in _PLACEHOLDER.finditer(text):
        masked += HIDDEN if match.start() > end else ""
        # A default of `env` is a value; the third part of a `file` is the name of a key.
        shown_default = f":{HIDDEN}" if match[3] and match[1] == "env" else (match[3] or "")
        masked += f"${{{match[1]}:{match[2]}{shown_default}}}"
        end = match.end()
    return masked + (HIDDEN if end < len(text) or not text else "")


def _texts(value: Value, path: KeyPath) -> Iterator[tuple[KeyPath, str]]:
    """Every text, for the credentials that may stand inside one: a URL in a statement, say."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def _suspects(value: Value, path: KeyPath) -> Iterator[KeyPath]:
    """Scalars whose key sounds like a secret, whatever their model says; files that hold one are named in the open."""
    if isinstance(value, dict):
        for key, item in value.items():
            is_scalar = item is not None and not isinstance(item, dict | list | bool)
            if is_scalar and _SECRET_NAME.search(key) and not key.endswith("_file"):
                yield (*path, key)
            yield from _suspects(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _suspects(item, (*path, index))

"""Settings of the process from outside the YAML: command line, environment, mounted secret files, in this order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic_settings import BaseSettings, NestedSecretsSettingsSource, SettingsConfigDict, SettingsError
from pydantic_settings.sources import EnvSettingsSource

from outboxd.config.footprint import Footprint
from outboxd.config.problems import KeyPath, Place, Problem
from outboxd.config.process_settings import DaemonSettings, HttpSettings
from outboxd.config.source import Source, put
from outboxd.config.suggestion import closest
from outboxd.config.yaml import Value
from outboxd.telemetry.settings import TelemetrySettings

__all__ = ["PREFIX", "SECRETS_DIR", "ProcessSettings", "overlay_process_settings"]

PREFIX: Final = "OUTBOXD_"
SECRETS_DIR: Final = "OUTBOXD_SECRETS_DIR"
"""Names the folder of mounted secret files, such as `http/port` in it; default `/run/secrets/outboxd`."""
_DEFAULT_SECRETS: Final = "/run/secrets/outboxd"
_DELIMITER: Final = "__"


class ProcessSettings(BaseSettings):
    """What can be set from outside; the sections are validated together with the YAML's own."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter=_DELIMITER, hide_input_in_errors=True)

    daemon: DaemonSettings = DaemonSettings()
    """The daemon as a whole."""
    http: HttpSettings = HttpSettings()
    """Where the REST API, the probes and the metrics answer."""
    telemetry: TelemetrySettings = TelemetrySettings()
    """Logs, metrics and traces."""


class _Environment(EnvSettingsSource):
    """The environment that the caller gives, not the process's own."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        super().__init__(ProcessSettings)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return {name.lower(): value for name, value in self._environ.items()}


def overlay_process_settings(
    source: Source, environ: Mapping[str, str], overrides: Mapping[str, str], footprint: Footprint
) -> None:
    """Put what comes from outside over the YAML's `daemon`, `http` and `telemetry`.

    ``overrides`` are those of the command line, by dotted key (`http.port`).
    """
    directory = Path(environ.get(SECRETS_DIR, _DEFAULT_SECRETS))
    footprint.note_tree(directory)
    _unknown_variables(source, environ)
    _overlay(source, _secrets(source, directory, environ), lambda path: f"file:{directory.joinpath(*map(str, path))}")
    _overlay(source, _variables(source, environ), lambda path: f"env:{variable(path)}")
    for key, text in overrides.items():
        path = tuple(key.split("."))
        _set(source, path, text, Place(file=f"command line ({key})"))


def variable(path: KeyPath) -> str:
    """The environment variable that sets this key."""
    return PREFIX + _DELIMITER.join(str(step).upper() for step in path)


def _variables(source: Source, environ: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        return _Environment(environ)()
    except SettingsError as error:
        _refused(source, "environment", error)
        return {}


def _secrets(source: Source, directory: Path, environ: Mapping[str, str]) -> Mapping[str, Any]:
    if not directory.is_dir():
        if SECRETS_DIR in environ:
            problem = Problem(
                place=Place(file=f"environment ({SECRETS_DIR})"),
                code="file_missing",
                message="there is no such folder of secret files",
                suggestion="mount it, or unset the variable",
            )
            source.problems.append(problem)
        return {}
    try:
        read = NestedSecretsSettingsSource(
            ProcessSettings,  # type: ignore[arg-type]  # documented to take the class too
            secrets_dir=directory,
            secrets_dir_missing="ok",
            secrets_prefix="",
            secrets_nested_subdir=True,
        )
        return read()
    except (SettingsError, OSError, UnicodeDecodeError) as error:
        _refused(source, str(directory), error)
        return {}


def _refused(source: Source, where: str, error: Exception) -> None:
    # The library's own words may quote a value.
    problem = Problem(
        place=Place(file=where),
        code="invalid_value",
        message=f"the settings cannot be read ({type(error).__name__})",
        suggestion="give each setting as a text of its own: OUTBOXD_HTTP__PORT=8083, or a file http/port",
    )
    source.problems.append(problem)


def _unknown_variables(source: Source, environ: Mapping[str, str]) -> None:
    """A variable that looks like a setting and names no section was meant for us and would be lost silently."""
    sections = list(ProcessSettings.model_fields)
    for name in environ:
        section, delimiter, _ = name.removeprefix(PREFIX).partition(_DELIMITER)
        if name.startswith(PREFIX) and delimiter and section.lower() not in sections:
            problem = Problem(
                place=Place(file=f"environment ({name})"),
                code="unknown_key",
                message=f"no section is called {section.lower()}",
                suggestion=closest(section.lower(), sections),
            )
            source.problems.append(problem)


def _overlay(source: Source, found: Mapping[str, Any], origin: Any) -> None:
    for path, value in _leaves(found, ()):
        placeholder = origin(path)
        scheme, _, rest = placeholder.partition(":")
        place = Place(file=f"environment ({rest})" if scheme == "env" else rest)
        _set(source, path, value, place, shown=f"${{{placeholder}}}")


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Value]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    else:
        yield path, value


def _set(source: Source, path: KeyPath, value: Value, place: Place, shown: str | None = None) -> None:
    put(source.data, path, value)
    put(source.shown, path, value if shown is None else shown)
    source.values[path] = source.keys[path] = place
    source.failed.discard(path)
    source.problems[:] = [problem for problem in source.problems if problem.path != path or not path]
    source.outside[path] = (str(value),)

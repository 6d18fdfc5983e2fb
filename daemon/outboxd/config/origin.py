"""Where a configuration comes from, so that it can be read again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from outboxd.config.configuration import Configuration
from outboxd.config.footprint import Footprint, Seen
from outboxd.config.load import load
from outboxd.config.problems import ConfigurationInvalid, Place, Problem
from outboxd.registry import Registry

__all__ = ["ConfigurationOrigin", "Loaded"]

_PLACE: Final = Place(file="configuration")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a load came to: a configuration or problems, and in both cases what was read."""

    configuration: Configuration | None
    problems: Sequence[Problem]
    seen: Seen


class ConfigurationOrigin:
    """The paths, the environment and the plugins of one configuration. Every load reads them all."""

    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        environ: Mapping[str, str],
        registry: Registry,
        overrides: Mapping[str, str] | None = None,
    ) -> None:
        self._paths = tuple(paths)
        self._environ = dict(environ)
        self._registry = registry
        self._overrides = dict(overrides or {})

    def load(self) -> Loaded:
        """The configuration as the files are now. Never raises: whatever is wrong is a problem."""
        footprint = Footprint()
        configuration: Configuration | None = None
        problems: Sequence[Problem] = ()
        try:
            configuration = load(
                self._paths,
                environ=self._environ,
                registry=self._registry,
                overrides=self._overrides,
                footprint=footprint,
            )
        except ConfigurationInvalid as error:
            problems = error.problems
        except Exception as error:  # noqa: BLE001  # a plugin's validation; its message may hold what must not be shown
            message = f"the configuration could not be read: {type(error).__name__}"
            remedy = "run `outboxd check`, and report it"
            problems = [Problem(place=_PLACE, code="internal", message=message, suggestion=remedy)]
        return Loaded(configuration=configuration, problems=problems, seen=footprint.seen)

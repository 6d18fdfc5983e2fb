"""Distributions that are not installed: entry points and plugin types for tests."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator

from outboxd.api import (
    HandlerContext,
    PluginSettings,
    PostgresConnectionName,
    Record,
    SecretStr,
    StatelessPlugin,
    hookimpl,
)
from outboxd.registry import Registry, build_registry

KINDS = ("handlers", "actions", "classifiers", "sinks", "codecs", "config_schemes")


@dataclass(frozen=True)
class FakeDistribution:
    name: str = "acme"
    version: str = "1.0"


@dataclass(frozen=True)
class FakeEntryPoint:
    """An entry point whose module is given, or raises."""

    loaded: object
    name: str = "plugin"
    dist: FakeDistribution | None = field(default_factory=FakeDistribution)

    def load(self) -> object:
        if isinstance(self.loaded, BaseException):
            raise self.loaded
        return self.loaded


class FakeModule:
    """Stands for an imported module."""


def plugin_module(**registered: Any) -> FakeModule:
    """A module that registers these types by kind (`handlers={...}`); other keys become its attributes."""
    module = FakeModule()
    for key, value in registered.items():
        if key in KINDS:
            setattr(module, f"outboxd_register_{key}", hookimpl(_giving(value)))
        else:
            setattr(module, key, value)
    return module


def _giving(value: object) -> Any:
    def registered() -> object:
        return value

    return registered


def registry_with(**registered: Mapping[str, type]) -> Registry:
    """What is installed, and one more distribution `acme` that registers these."""
    installed = list(importlib.metadata.entry_points(group="outboxd"))
    return build_registry([*installed, FakeEntryPoint(plugin_module(**registered))])


def _refuse(value: str) -> str:
    raise ValueError(f"{value!r} is not good")


class NestedSettings(PluginSettings):
    """Nested."""

    password: SecretStr | None = None
    """A secret."""
    checked: Annotated[str, AfterValidator(_refuse)] | None = None
    """Refuses everything, loudly."""


class SecretiveSettings(PluginSettings):
    """Settings with secrets and a validator that quotes what it refuses."""

    url: str
    """Any text."""
    api_token: str = ""
    """Sounds like a secret."""
    nested: NestedSettings | None = None
    """More."""
    checked: Annotated[str, AfterValidator(_refuse)] | None = None
    """Refuses everything, loudly."""


class SecretiveHandler(StatelessPlugin):
    """A handler with secrets."""

    Settings: ClassVar[type[PluginSettings]] = SecretiveSettings

    async def handle(self, record: Record, context: HandlerContext) -> None:
        """Nothing to do."""


class StoringSettings(PluginSettings):
    """Settings of a handler that writes to Postgres."""

    connection: PostgresConnectionName
    """Where to."""
    headers: Mapping[str, str] = {}
    """A mapping of the plugin's own."""


class StoringHandler(SecretiveHandler):
    """A handler that names a Postgres connection."""

    Settings: ClassVar[type[PluginSettings]] = StoringSettings


class ForgetfulSink(StatelessPlugin):
    """A sink that keeps letters in memory only."""

    is_durable: ClassVar[bool] = False

    async def write(self, letters: object) -> object:
        """Forget them."""
        return letters

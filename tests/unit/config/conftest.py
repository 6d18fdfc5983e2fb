"""Configuration files as texts, loaded with what is installed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import pytest

from outboxd.config import Configuration, ConfigurationInvalid, Problem, load
from outboxd.registry import Registry, build_registry

Load: TypeAlias = Callable[..., Configuration]
Check: TypeAlias = Callable[..., Sequence[Problem]]

CONNECTIONS = """
connections:
  shop: {type: postgres, dsn: "postgresql://localhost/shop"}
  main: {type: kafka, bootstrap_servers: ["localhost:9092"]}
"""


@pytest.fixture(scope="session")
def registry() -> Registry:
    return build_registry()


@pytest.fixture
def load_text(tmp_path: Path, registry: Registry) -> Load:
    """Loads one text, or several by file name."""

    def load_them(
        text: str | Mapping[str, str],
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
        registry: Registry = registry,
    ) -> Configuration:
        files = {"outboxd.yaml": text} if isinstance(text, str) else text
        for name, content in files.items():
            (tmp_path / name).write_text(textwrap.dedent(content), encoding="utf-8")
        return load([tmp_path], environ=environ or {}, registry=registry, overrides=overrides)

    return load_them


@pytest.fixture
def problems_of(load_text: Load) -> Check:
    """What is wrong with a text; nothing when it is valid."""

    def check(*arguments: object, **options: object) -> Sequence[Problem]:
        try:
            load_text(*arguments, **options)
        except ConfigurationInvalid as error:
            return error.problems
        return ()

    return check

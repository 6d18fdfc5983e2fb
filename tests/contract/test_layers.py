"""Who may import whom: the contracts of import-linter hold for the tree as it stands."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[2]


def test_every_import_follows_the_layers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def test_a_module_outside_the_layers_fails_the_build() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["type"] == "layers")
    assert layers["exhaustive"] is True
    named = {name.strip() for layer in layers["layers"] for name in layer.replace("|", ":").split(":")}
    present = {path.stem for path in (ROOT / "daemon" / "outboxd").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert present - {"__init__", "__pycache__"} == named

"""Every configuration that is shown to people is a valid one: files under configs/, blocks in the documentation."""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from outboxd.config import ConfigurationInvalid, load
from outboxd.config.schema import json_schema
from outboxd.config.yaml import read_yaml
from outboxd.registry import build_registry

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*/README.md"))]
_BLOCK = re.compile(r"^( *)```yaml([^\n]*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)

FRAME = """
connections:
  shop: {type: postgres, dsn: "postgresql://localhost/shop"}
  main: {type: kafka, bootstrap_servers: ["localhost:9092"]}
"""
CONSUMER = {
    "consume": "    consume: {connection: main, topics: [orders.new]}\n",
    "handler": "    handler: {type: log}\n",
}
RELAY = {"outbox": "    outbox: {connection: shop}\n", "publish": "    publish: {connection: main}\n"}


def blocks() -> Iterator[tuple[str, str, str]]:
    """Where each ```yaml block stands, the rest of its first line, and its text.

    ```yaml            a whole configuration
    ```yaml fragment   parts of one pipeline (`errors:`, `dead_letters:`, ...), or whole sections
    ```yaml values     values of the chart; those are rendered by tests/helm
    """
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in _BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            indent = len(match[1])
            content = "".join(each[indent:] for each in match[3].splitlines(keepends=True))
            yield f"{page.relative_to(ROOT)}:{line}", match[2].strip(), content


def whole(fragment: str) -> str:
    """A configuration around the parts of one pipeline, with connections `shop` and `main`."""
    value = read_yaml(fragment, "fragment").value
    keys = set(value) if isinstance(value, dict) else set()
    if keys & {"connections", "pipelines", "daemon", "http", "telemetry"}:
        return fragment if "connections" in keys else FRAME + fragment
    needed = RELAY if keys & {"outbox", "publish"} else CONSUMER
    parts = "".join(part for key, part in needed.items() if key not in keys)
    return f"{FRAME}pipelines:\n  p:\n{parts}" + "".join(f"    {line}" for line in fragment.splitlines(keepends=True))


def problems(folder: Path, text: str) -> list[str]:
    (folder / "block.yaml").write_text(text, encoding="utf-8")
    try:
        load([folder], environ={}, registry=build_registry())
    except ConfigurationInvalid as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_file_under_configs_passes_check(file: Path) -> None:
    load([file], environ={}, registry=build_registry())
    schema = json.loads((ROOT / "configs" / "schema.json").read_text(encoding="utf-8"))
    value = read_yaml(file.read_text(encoding="utf-8"), str(file)).value
    assert [error.message for error in Draft202012Validator(schema).iter_errors(value)] == []


def test_the_daemon_runs_with_the_pipelines_beside_it() -> None:
    configuration = load([ROOT / "configs", ROOT / "configs" / "pipelines"], environ={}, registry=build_registry())
    assert set(configuration.pipelines) == {"orders-outbox", "establishment-outbox", "establishment", "orders"}


def test_there_are_configurations() -> None:
    assert len(CONFIGS) >= 5


@pytest.mark.parametrize(
    ("kind", "text"), [pytest.param(kind, text, id=where) for where, kind, text in blocks() if kind != "values"]
)
def test_every_yaml_block_of_the_documentation_passes_check(kind: str, text: str, tmp_path: Path) -> None:
    assert kind in {"", "fragment"}, "the rest of the line after ```yaml is nothing, or the words fragment or values"
    assert problems(tmp_path, whole(text) if kind else text) == []


def test_a_wrong_block_would_be_found(tmp_path: Path) -> None:
    assert problems(tmp_path, whole("errors: {otherwise: retry}\n")) == []
    assert problems(tmp_path, whole("errors: {otherwise: retyr}\n")) != []
    assert problems(tmp_path, whole("publish: {connection: mian}\n")) != []


def test_the_schema_is_the_one_of_the_first_party_plugins() -> None:
    """When this fails run `outboxd schema -o configs/schema.json`."""
    written = (ROOT / "configs" / "schema.json").read_text(encoding="utf-8")
    installed = importlib.metadata.entry_points(group="outboxd")
    registry = build_registry([point for point in installed if point.dist is not None and point.dist.name == "outboxd"])
    assert written == json.dumps(json_schema(registry), indent=2, ensure_ascii=False) + "\n"

"""What the documentation shows is true: its Python compiles, its links lead somewhere, its plugin can be registered."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from outboxd.api import PluginSettings

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "daemon" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]


def _blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_the_pages_compiles(page: Path) -> None:
    for block in _blocks(page, "python"):
        # Snippets may show the inside of a coroutine.
        indented = "".join(f"    {line}\n" for line in block.splitlines())
        compile(f"async def shown():\n{indented}", str(page), "exec")


def test_the_plugin_of_the_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = _blocks(ROOT / "docs" / "plugins.md", "python")
    (tmp_path / "seen_of_the_page.py").write_text(source, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    handlers = importlib.import_module("seen_of_the_page").outboxd_register_handlers()
    settings = handlers["seen"].Settings
    assert issubclass(settings, PluginSettings)
    assert settings.model_validate({"connection": "shop"}).model_dump() == {"connection": "shop"}

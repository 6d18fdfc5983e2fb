"""The local file of target states."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from outboxd.errors import ConfigurationError
from outboxd.lifecycle import TargetState
from outboxd.ports import Target
from outboxd.runtime.targets import FileTargetStore, default_target_file

PAUSED = Target(state=TargetState.PAUSED, actor="ann", at=datetime(2026, 5, 1, tzinfo=UTC), reason="inventory")


async def test_a_target_survives_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "shop" / "targets.json"
    store = FileTargetStore(path)
    assert await store.load() == {}
    await store.save("orders", PAUSED)
    await store.save("payments", Target(state=TargetState.STOPPED, actor="bob", at=PAUSED.at))
    store.close()
    again = FileTargetStore(path)
    assert (await again.load())["orders"] == PAUSED
    assert sorted(await again.load()) == ["orders", "payments"]
    assert [each.name for each in path.parent.iterdir()] == ["targets.json"]
    again.close()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"orders": {}}', '{"orders": {"state": "sleeping"}}', "{", '{"orders": 1}']
)
async def test_a_file_that_is_not_ours_is_an_error_and_never_a_guess(tmp_path: Path, text: str) -> None:
    path = tmp_path / "targets.json"
    path.write_text(text)
    store = FileTargetStore(path)
    with pytest.raises(ConfigurationError) as caught:
        await store.load()
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigurationError):
        await store.save("orders", PAUSED)
    assert path.read_text() == text
    store.close()


async def test_a_folder_that_cannot_be_written_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "shop").write_text("a file where the folder should be")
    store = FileTargetStore(tmp_path / "shop" / "targets.json")
    with pytest.raises(ConfigurationError) as caught:
        await store.save("orders", PAUSED)
    assert "OUTBOXD_STATE_DIR" in (caught.value.suggestion or "")
    store.close()


def test_the_state_folder_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OUTBOXD_STATE_DIR", raising=False)
    assert default_target_file("shop") == Path(".outboxd/shop/targets.json")
    monkeypatch.setenv("OUTBOXD_STATE_DIR", str(tmp_path))
    assert default_target_file("shop") == tmp_path / "shop" / "targets.json"


async def test_the_file_is_readable_json_for_people(tmp_path: Path) -> None:
    store = FileTargetStore(tmp_path / "targets.json")
    await store.save("orders", PAUSED)
    assert json.loads((tmp_path / "targets.json").read_text()) == {
        "orders": {"state": "paused", "actor": "ann", "at": "2026-05-01T00:00:00+00:00", "reason": "inventory"}
    }
    store.close()

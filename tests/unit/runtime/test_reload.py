"""Files change under a running daemon: what is good comes into force, what is not changes nothing and is told."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from outboxd.config import Configuration, ConfigurationOrigin
from outboxd.errors import StateConflict
from outboxd.registry import build_registry
from outboxd.runtime.changes import Changes, changes
from outboxd.runtime.reload import Reloader
from outboxd.telemetry.audit import ReloadRequested
from outboxd.telemetry.configuration import (
    ConfigurationApplied,
    ConfigurationRefused,
    ConfigurationUnsettled,
    ReloadIsOff,
    RestartNeeded,
)
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from tests.mounted_folder import MountedFolder
from tests.unit.runtime.doubles import Recorder

_T = TypeVar("_T")

CONNECTIONS = """
connections:
  main: {type: kafka, bootstrap_servers: [localhost:9092]}
  shop: {type: postgres, dsn: "postgresql://u:${file:password:x}@localhost/shop"}
"""
ONE = "  one: {consume: {connection: main, topics: [a]}, handler: {type: log}}\n"
TWO = "  two: {consume: {connection: main, topics: [b]}, handler: {type: log}}\n"
BROKEN = "pipelines:\n  one: {consume: {connection: nowhere, topics: [a]}\n"


class Inline(Reloader):
    """Reads in the loop's own thread: threads know nothing of virtual time."""

    hangs = False

    async def _in_thread(self, work: Callable[[], _T]) -> _T | None:
        if self.hangs:
            await asyncio.sleep(30)
            return None
        return work()


class Story:
    """A reloader over real files, and what it put in force."""

    def __init__(self, *paths: Path) -> None:
        self.origin = ConfigurationOrigin(paths, environ={}, registry=build_registry())
        loaded = self.origin.load()
        assert loaded.configuration is not None, loaded.problems
        self.present = loaded.configuration
        self.telemetry = Recorder()
        self.applied: list[Changes] = []
        self.fails: Exception | None = None
        self.reloader = Inline(
            self.present, origin=self.origin, apply=self._apply, clock=FakeClock(), telemetry=self.telemetry
        )
        self.reloader.open()

    async def _apply(self, after: Configuration) -> Changes:
        if self.fails is not None:
            raise self.fails
        found = changes(self.present, after, used=lambda _: set())
        self.present = after
        self.applied.append(found)
        return found

    def count(self, kind: type) -> int:
        return sum(isinstance(event, kind) for event in self.telemetry.events)

    def refused(self) -> list[str]:
        """The codes of what is wrong; empty while all is well."""
        state = self.reloader.state
        assert state.is_successful is not bool(state.problems)
        return [problem.code for problem in state.problems]


@pytest.fixture
def mount(tmp_path: Path) -> MountedFolder:
    mount = MountedFolder(tmp_path / "mount")
    mount.put(connections=CONNECTIONS.replace("${file:password:x}", "x"), pipelines="pipelines:\n" + ONE + TWO)
    return mount


def _said(text: str) -> str:
    return CONNECTIONS.replace("${file:password:x}", "x") + "pipelines:\n" + text


@pytest.mark.fixes("B058")
def test_a_mounted_folder_is_swapped_then_broken_then_good(mount: MountedFolder) -> None:
    @virtual_time
    async def story() -> None:
        connections = CONNECTIONS.replace("${file:password:x}", "x")
        one = Story(mount.folder)
        mount.put(connections=connections, pipelines="pipelines:\n" + ONE + TWO.replace("[b]", "[b, c]"))
        await asyncio.sleep(10)
        assert [found.changed for found in one.applied] == [["two"]]
        mount.put(connections=connections, pipelines=BROKEN)
        await asyncio.sleep(10)
        assert one.refused()
        one.reloader.look_now()
        await asyncio.sleep(1)
        told = [event.is_new for event in one.telemetry.events if isinstance(event, ConfigurationRefused)]
        assert told == [True, False], "the same fault is logged once"
        place = one.reloader.state.problems[0].place
        assert (Path(place.file).name, place.line) == ("pipelines.yaml", 3)
        assert len(one.applied) == 1
        assert one.present.pipelines.keys() == {"one", "two"}
        mount.put(connections=connections, pipelines="pipelines:\n" + TWO.replace("[b]", "[b, c]"))
        await asyncio.sleep(10)
        assert one.refused() == []
        assert [found.removed for found in one.applied] == [[], ["one"]]
        await asyncio.sleep(60)
        assert (len(one.applied), one.count(ConfigurationApplied)) == (2, 2)
        await one.reloader.close()

    story()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_text("# nothing but a comment\n"),
        lambda path: path.write_text(_said("")),
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b"\xff\xfe"),
        lambda path: path.write_text(_said(ONE + TWO)[:-30]),
        lambda path: path.write_text(_said(ONE + TWO).replace("type: log", "type: lgo")),
        lambda path: (path.unlink(), path.mkdir()),
    ],
    ids=["empty", "a comment", "empty pipelines", "gone", "no text", "half written", "a typo", "a folder instead"],
)
def test_what_is_wrong_changes_nothing_until_it_is_right(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text(_said(ONE + TWO))
        one = Story(path)
        spoil(path)
        await asyncio.sleep(60)
        assert one.refused()
        assert (one.applied, one.count(ConfigurationRefused)) == ([], 1)
        if path.is_dir():
            path.rmdir()
        path.write_text(_said(ONE + TWO))
        await asyncio.sleep(10)
        assert one.refused() == []
        assert [(found.changed, found.removed) for found in one.applied] == [([], [])]
        await one.reloader.close()

    story()


def test_a_folder_that_vanishes_ends_nothing(mount: MountedFolder) -> None:
    @virtual_time
    async def story() -> None:
        one = Story(mount.folder)
        shutil.rmtree(mount.folder)
        await asyncio.sleep(10)
        assert one.refused() == ["file_missing"]
        assert one.applied == []
        await one.reloader.close()

    story()


@pytest.mark.parametrize("is_renamed", [True, False])
def test_an_editor_may_write_in_place_or_rename(tmp_path: Path, is_renamed: bool) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text(_said(ONE))
        one = Story(tmp_path)
        if is_renamed:
            (tmp_path / ".pipelines.yaml.swp").write_text(_said(ONE + TWO))
            os.replace(tmp_path / ".pipelines.yaml.swp", path)  # noqa: PTH105  # what editors do
        else:
            path.write_text(_said(ONE + TWO))
        await asyncio.sleep(10)
        assert [found.added for found in one.applied] == [["two"]]
        await one.reloader.close()

    story()


def test_a_file_that_joins_the_folder_is_read_and_one_that_means_the_same_restarts_nothing(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        (tmp_path / "a.yaml").write_text(_said(ONE))
        one = Story(tmp_path)
        (tmp_path / "b.yaml").write_text("pipelines:\n" + TWO)
        await asyncio.sleep(10)
        (tmp_path / "a.yaml").write_text("# the same\n" + _said(ONE))
        await asyncio.sleep(10)
        assert [(found.added, found.changed) for found in one.applied] == [(["two"], []), ([], [])]
        await one.reloader.close()

    story()


def test_files_are_read_after_a_second_of_quiet(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text(_said(ONE))
        one = Story(path)
        for number in range(100):
            path.write_text(_said(ONE + f"# {number}\n"))
            await asyncio.sleep(0.7)
        assert one.applied == []
        assert one.count(ConfigurationUnsettled) == 1
        path.write_text(_said(TWO))
        await asyncio.sleep(5)
        assert [(found.added, found.removed) for found in one.applied] == [(["two"], ["one"])]
        await one.reloader.close()

    story()


def test_a_rotated_secret_is_seen_where_a_placeholder_names_it(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        (tmp_path / "password").write_text("x: first")
        (tmp_path / "pipelines.yaml").write_text(CONNECTIONS + "pipelines:\n" + ONE)
        one = Story(tmp_path / "pipelines.yaml")
        (tmp_path / "password").write_text("x: second")
        await asyncio.sleep(10)
        assert [found.connections for found in one.applied] == [{"shop"}]
        (tmp_path / "password").unlink()
        await asyncio.sleep(10)
        assert one.refused() == ["value_missing"]
        assert "second" not in str(one.reloader.state.problems)
        await one.reloader.close()

    story()


def test_whoever_asks_does_not_wait_for_a_change(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text(_said(ONE))
        one = Story(path)
        path.write_text(_said(ONE + TWO))
        state = await one.reloader.reload(actor="ann")
        assert (state.is_successful, state.added) == (True, ["two"])
        assert one.count(ReloadRequested) == 1
        path.write_text(BROKEN)
        one.reloader.look_now()
        await asyncio.sleep(0.1)
        assert one.refused()
        await one.reloader.close()

    story()


def test_with_reload_off_nobody_reads_anything(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text("daemon: {reload: 'off'}\n" + _said(ONE))
        one = Story(path)
        path.write_text(BROKEN)
        one.reloader.look_now()
        await asyncio.sleep(60)
        assert (one.applied, one.refused(), one.count(ReloadIsOff)) == ([], [], 1)
        with pytest.raises(StateConflict):
            await one.reloader.reload(actor="ann")
        await one.reloader.close()

    story()


def test_settings_of_the_process_are_told_once(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text(_said(ONE))
        one = Story(path)
        path.write_text("http: {port: 99}\n" + _said(ONE))
        await asyncio.sleep(10)
        assert (one.reloader.state.needs_restart, one.count(RestartNeeded)) == (["http.port"], 1)
        await one.reloader.close()

    story()


def test_a_disk_that_hangs_is_told_and_read_when_it_is_back(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text(_said(ONE))
        one = Story(path)
        one.reloader.hangs = True
        await asyncio.sleep(300)
        assert one.refused() == ["read_timed_out"]
        assert one.count(ConfigurationRefused) > 1
        one.reloader.hangs = False
        await asyncio.sleep(70)
        assert one.refused() == []
        await one.reloader.close()

    story()


def test_a_failure_to_put_it_in_force_is_told_and_the_watch_goes_on(tmp_path: Path) -> None:
    @virtual_time
    async def story() -> None:
        path = tmp_path / "pipelines.yaml"
        path.write_text(_said(ONE))
        one = Story(path)
        one.fails = RuntimeError("hunter2")
        path.write_text(_said(ONE + TWO))
        await asyncio.sleep(10)
        assert one.refused() == ["internal"]
        assert "hunter2" not in str(one.reloader.state.problems)
        one.fails = None
        path.write_text(_said(TWO))
        await asyncio.sleep(10)
        assert one.refused() == []
        await one.reloader.close()

    story()

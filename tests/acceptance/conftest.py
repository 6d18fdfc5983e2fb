"""Daemons that end with their test, and the files through which the user's code speaks to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.harness import Daemon

MakeDaemon = Callable[..., Daemon]


@pytest.fixture
def make_daemon(tmp_path: Path) -> Iterator[MakeDaemon]:
    """``make_daemon(configuration, name="a", **environment)``; every daemon is killed after the test."""
    daemons: list[Daemon] = []

    def make(configuration: str, name: str = "daemon", **environment: str) -> Daemon:
        files = {"OUTBOXD_TEST_CALLS": str(tmp_path / "calls"), "OUTBOXD_TEST_GATE": str(tmp_path / "gate")}
        daemon = Daemon(tmp_path / name, configuration, {**files, **environment})
        daemons.append(daemon)
        return daemon

    yield make
    for daemon in daemons:
        daemon.kill()


@pytest.fixture
def calls(tmp_path: Path) -> Callable[[], list[str]]:
    """The lines that the user's code has left."""

    def read() -> list[str]:
        path = tmp_path / "calls"
        return path.read_text("utf-8").splitlines() if path.exists() else []

    return read


@pytest.fixture
def open_gate(tmp_path: Path) -> Callable[[], None]:
    """Let what is gated succeed from now on."""
    return (tmp_path / "gate").touch

"""`outboxd demo`: the whole story, and no process of it left, however it ends."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from shop import demo

from tests.acceptance.harness import OUTBOXD


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(folder) in command and process.pid != os.getpid() and "outboxd demo" not in command:
            found.append(command)
    return found


def _end_in_the_middle(folder: Path, number: signal.Signals) -> int:
    """Start a demo, end it by the signal once servers and daemon are there; its exit code, and nothing of it runs."""
    with subprocess.Popen(
        [OUTBOXD, "demo", "-d", folder],
        stdout=subprocess.PIPE,
        text=True,
        # A suite that runs in the background of a shell has SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as demo:
        try:
            assert demo.stdout is not None
            assert any("RUNNING" in line for line in iter(demo.stdout.readline, ""))
            demo.send_signal(number)
            demo.wait(90)
        finally:
            demo.kill()
    deadline = time.monotonic() + 60
    while _processes_of(folder):
        assert time.monotonic() < deadline, _processes_of(folder)
        time.sleep(0.2)
    return demo.returncode


def test_the_demo_ends_by_itself_and_an_interrupted_one_leaves_no_process(servers_folder: Path) -> None:
    folder = servers_folder / "demo"
    assert _end_in_the_middle(folder, signal.SIGKILL) == -signal.SIGKILL
    assert _end_in_the_middle(folder, signal.SIGINT) != 0

    # In the folder of both, where nothing that they left is in the way.
    whole = subprocess.run(
        [OUTBOXD, "demo", "-d", folder, "--json"], capture_output=True, text=True, timeout=240, check=False
    )
    assert whole.returncode == 0, whole.stdout + whole.stderr
    envelope = json.loads(whole.stdout)
    assert envelope["ok"]
    assert _processes_of(folder) == []
    assert envelope["result"]["calls_before_letter"] == 5


def test_the_next_demo_removes_the_folder_of_a_killed_one_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("outboxd-demo-killed", "outboxd-demo-running", "outboxd-demo-beginning", "another"):
        (tmp_path / name / "servers").mkdir(parents=True)
    for name in ("outboxd-demo-killed", "another"):
        (tmp_path / name / "servers" / "lock").touch()
    with (tmp_path / "outboxd-demo-running" / "servers" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        demo._remove_abandoned_folders()
    assert {path.name for path in tmp_path.iterdir()} == {"outboxd-demo-running", "outboxd-demo-beginning", "another"}

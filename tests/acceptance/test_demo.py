"""`outboxd demo`: the whole story, and no process of it left, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from tests.acceptance.harness import OUTBOXD


def _processes_of(folder: Path) -> list[str]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        command = " ".join(process.info["cmdline"] or [])
        if str(folder) in command and process.pid != os.getpid() and "outboxd demo" not in command:
            found.append(command)
    return found


def test_the_demo_ends_by_itself_and_a_killed_one_leaves_no_process(servers_folder: Path) -> None:
    folder = servers_folder / "demo"
    killed = subprocess.Popen([OUTBOXD, "demo", "-d", folder], stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    lines = iter(killed.stdout.readline, "")
    assert any("RUNNING" in line for line in lines)  # both servers and the daemon are there now
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    deadline = time.monotonic() + 60
    while _processes_of(folder):
        assert time.monotonic() < deadline, _processes_of(folder)
        time.sleep(0.2)

    # In the folder of the killed one, which finds nothing of it in its way.
    whole = subprocess.run(
        [OUTBOXD, "demo", "-d", folder, "--json"], capture_output=True, text=True, timeout=240, check=False
    )
    assert whole.returncode == 0, whole.stdout + whole.stderr
    envelope = json.loads(whole.stdout)
    assert envelope["ok"]
    assert _processes_of(folder) == []
    assert envelope["result"]["calls_before_letter"] == 5

"""Signals to a daemon in a process of its own: drain, unclean end, and the second signal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("daemon_script.py")


async def _start(behaviour: str, folder: Path, *, loop: str = "") -> Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPT),
        behaviour,
        str(folder),
        stdout=PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "OUTBOXD_EVENT_LOOP": loop},
    )
    assert process.stdout is not None
    async with asyncio.timeout(30):
        while b"working" not in (line := await process.stdout.readline()):
            assert line, "the daemon ended early"
    return process


async def _end(process: Process) -> tuple[int, str]:
    async with asyncio.timeout(30):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_and_the_exit_is_0(tmp_path: Path, number: signal.Signals, loop: str) -> None:
    process = await _start("drains", tmp_path, loop=loop)
    process.send_signal(number)
    code, output = await _end(process)
    assert code == 0, output
    assert '"event": "drain_began"' in output
    assert '"clean": true' in output


@pytest.mark.fixes("B007")
@pytest.mark.parametrize("behaviour", ["never drains", "ignores cancellation"])
async def test_what_does_not_drain_in_time_makes_the_end_unclean(tmp_path: Path, behaviour: str) -> None:
    process = await _start(behaviour, tmp_path)
    process.send_signal(signal.SIGTERM)
    code, output = await _end(process)
    assert code == 1, output
    assert '"not_finished": ["pipelines"]' in output


async def test_a_second_signal_ends_at_once_with_143(tmp_path: Path) -> None:
    process = await _start("never drains", tmp_path)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    async with asyncio.timeout(10):
        while b"drain_began" not in await process.stdout.readline():
            continue
    process.send_signal(signal.SIGTERM)
    code, _ = await _end(process)
    assert code == 143


@pytest.mark.fixes("B007")
async def test_a_thread_that_never_returns_does_not_hold_the_exit_up(tmp_path: Path) -> None:
    process = await _start("holds a thread", tmp_path)
    process.send_signal(signal.SIGTERM)
    code, output = await _end(process)
    assert code == 0, output


@pytest.mark.fixes("B061")
async def test_a_pipeline_that_exits_leaves_the_daemon_running(tmp_path: Path) -> None:
    process = await _start("exits", tmp_path)  # the other pipeline works
    process.send_signal(signal.SIGTERM)
    code, output = await _end(process)
    assert code == 0, output

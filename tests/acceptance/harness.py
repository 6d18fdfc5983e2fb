"""The installed command as a user runs it: a daemon in its own process, its configuration, its answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import httpx
from aiokafka.admin import AIOKafkaAdminClient

from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.settings import KafkaSettings
from outboxd.records import NO_HEADERS, RawRecord

ROOT = Path(__file__).parents[2]
OUTBOXD = Path(sys.executable).with_name("outboxd")

_T = TypeVar("_T")


async def until(look: Callable[[], Awaitable[_T | None]], seconds: float = 40, what: str = "") -> _T:
    """Look again and again until there is something to see; fails with what was waited for."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        seen = await look()
        if seen:
            return seen
        assert loop.time() < deadline, f"waited {seconds:g} s in vain: {what or look.__qualname__}"
        await asyncio.sleep(0.1)


class Daemon:
    """One `outboxd run` on a configuration of its own. ``environment`` is added to this process's."""

    program: Sequence[str | Path] = (OUTBOXD,)

    def __init__(self, folder: Path, configuration: str, environment: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.config = folder / "pipelines.yaml"
        self.config.write_text(configuration, "utf-8")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OUTBOXD_HTTP__PORT": str(port),
            "OUTBOXD_STATE_DIR": str(folder / "state"),
            **(environment or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._log = folder / "daemon.log"

    def command(self, *arguments: str, has_url: bool = False) -> tuple[int, Any]:
        """The exit code and the envelope of a command with `--json`."""
        with_url = ["--url", self.url] if has_url else []
        finished = subprocess.run(
            [*self.program, *arguments, *with_url, "--json"],
            capture_output=True,
            env=self.environment,
            timeout=60,
            check=False,
        )
        assert finished.stdout, finished.stderr.decode()
        return finished.returncode, json.loads(finished.stdout)

    async def ask(self, *arguments: str) -> Any:
        """The result of a command that asks the running daemon."""
        code, envelope = await asyncio.to_thread(lambda: self.command(*arguments, has_url=True))
        assert code == 0, envelope
        return envelope["result"]

    def migrate(self) -> None:
        """`outboxd migrate`."""
        code, envelope = self.command("migrate", "-c", str(self.config))
        assert code == 0, envelope

    def start(self) -> None:
        """`outboxd run`; returns at once."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, "run", "-c", self.config], stdout=log, stderr=log, env=self.environment
            )

    async def started(self, *expected: str) -> None:
        """Start, and wait until the pipelines (all that there are, unless named) run."""
        self.start()

        async def running() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log()
            states = await self.states()
            return bool(states) and all(states[name] == "RUNNING" for name in expected or states)

        await until(running, what="the pipelines run")

    async def states(self) -> dict[str, str]:
        """Each pipeline's state; empty while nobody answers."""
        return {status["name"]: status["state"] for status in await self.statuses()}

    async def statuses(self) -> list[dict[str, Any]]:
        """The status of each pipeline; empty while nobody answers."""
        return await self._items("pipelines")

    async def status(self, pipeline: str) -> dict[str, Any]:
        """One pipeline's status."""
        return next((status for status in await self.statuses() if status["name"] == pipeline), {})

    async def letters(self, pipeline: str) -> list[dict[str, Any]]:
        """A pipeline's letters in its home; empty while nobody answers."""
        return await self._items("letters", pipeline=pipeline)

    async def _items(self, what: str, **query: str) -> list[dict[str, Any]]:
        # Looked at again and again: over REST a look costs nothing, a command costs a second of the processor.
        async with httpx.AsyncClient(base_url=self.url) as client:
            try:
                answer = await client.get(f"/v1/{what}", params=query, timeout=30)
            except httpx.TransportError:
                return []
        return list(answer.json()["items"]) if answer.status_code == 200 else []

    def kill(self) -> None:
        """Kill -9; harmless when it is gone."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    async def terminate(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return await asyncio.to_thread(self.process.wait, 60)

    def log(self) -> str:
        """What it has written."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""


async def records_of(bootstrap: str, topic: str) -> list[RawRecord]:
    """Every record of a topic, partition by partition."""
    admin = _broker(bootstrap).admin()
    try:
        records: list[RawRecord] = []
        for partition, end in sorted((await admin.end_offsets(topic)).items()):
            offset = 0
            while offset < end:
                page = await admin.read(partition, offset, 1000)
                if not page:
                    break
                records += page
                offset = page[-1].offset + 1
        return records
    finally:
        await admin.close()


async def produce(bootstrap: str, topic: str, *, key: str, value: bytes) -> None:
    """Send one record; returns when the broker has it."""
    sender = _broker(bootstrap).sender(deadline=timedelta(seconds=10))
    try:
        await sender.send(topic, key=key.encode(), value=value, headers=NO_HEADERS)
    finally:
        await sender.close()


async def committed(bootstrap: str, group: str, topic: str, partition: int = 0) -> int:
    """The group's committed offset; -1 for none."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        offsets = await client.list_consumer_group_offsets(group)
    finally:
        await client.close()
    return next(
        (value.offset for key, value in offsets.items() if (key.topic, key.partition) == (topic, partition)), -1
    )


def _broker(bootstrap: str) -> KafkaBroker:
    return KafkaBroker(KafkaSettings(type="kafka", bootstrap_servers=(bootstrap,)))

"""``bench profile``: where the daemon's CPU goes for each row, sampled while it works.

The sampler is py-spy, which starts the daemon itself: tracing a child of one's own needs no privilege. It looks into
compiled code too (the event loop, the database driver), which slows the daemon: compare shares, not rates.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.children import Child, start_child
from bench.consumer import Loads
from bench.payload import PARTITIONS
from bench.processes import CpuMeter
from bench.readers import RECORD
from bench.readers import Outboxd as OutboxdReader
from bench.relays import Outboxd as OutboxdRelay
from bench.servers import running_servers
from bench.stacks import CONSUMER, RELAY, read_stacks
from bench.tally import EXPECTED, REPORT
from bench.topic_log import end_offsets, log_reader
from outboxd.dev.logs import log_tail

__all__ = ["profile"]

_SAMPLES = 80
"""Looks a second; with compiled code more than about a hundred cannot be kept up."""
_PATIENCE = 120
_SLOWEST = 500
_POLL = 0.02


async def profile(what: str, *, rows: int, native: bool) -> str:
    """Profile the daemon's ``relay`` or ``consumer`` on ``rows`` rows; the report as text."""
    with TemporaryDirectory(prefix="outboxd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        run = _relay if what == "relay" else _consumer
        async with asyncio.timeout(5 * _PATIENCE + rows / _SLOWEST):
            return await run(folder, rows, native)


class Sampled:
    """A command under the sampler."""

    def __init__(self, sampler: Child, output: Path) -> None:
        self._sampler = sampler
        self._output = output

    @classmethod
    async def start(
        cls, folder: Path, command: Sequence[str], *, native: bool, environment: dict[str, str] | None = None
    ) -> Sampled:
        """Start both. Raises RuntimeError with the sampler's words when it may not look."""
        output = folder / "stacks.txt"
        py_spy = Path(sys.executable).with_name("py-spy")
        if not py_spy.exists():
            raise SystemExit("py-spy is not installed (requirements/bench.txt)")
        options = ["record", "--format", "raw", "--rate", str(_SAMPLES), "--output", str(output)]
        argv: list[str | Path] = [py_spy, *options, *(["--native"] if native else []), "--", *command]
        return cls(await start_child(folder, "py-spy", argv, environment), output)

    async def pid(self) -> int:
        """The command's process, once it is there."""
        async with asyncio.timeout(_PATIENCE):
            while not (children := psutil.Process(self._sampler.pid).children()):
                self._sampler.raise_if_ended()
                await asyncio.sleep(_POLL)
        return children[0].pid

    async def file(self, path: Path, seconds: float) -> str:
        """What the command writes to ``path``, once it is there."""
        return await self._sampler.file(path, seconds)

    async def stacks(self) -> str:
        """End the command in order, and read what was sampled."""
        psutil.Process(await self.pid()).terminate()
        until = time.monotonic() + _PATIENCE
        while self._sampler.process.is_running and time.monotonic() < until:
            await asyncio.sleep(_POLL)
        if not self._output.exists():
            raise RuntimeError(f"py-spy wrote nothing: {log_tail(self._sampler.log)}")
        return self._output.read_text("utf-8")

    async def stop(self) -> None:
        """End whatever runs yet."""
        await self._sampler.stop()


async def _relay(folder: Path, rows: int, native: bool) -> str:
    async with running_servers(folder / "servers", postgres=True) as servers:
        relay = OutboxdRelay(folder / "relay", servers)
        relay.folder.mkdir()
        await relay.set_up()
        await servers.kafka.create_topic("profile", partitions=PARTITIONS)
        await relay.fill("profile", rows)
        sampled = await Sampled.start(relay.folder, relay.command(), native=native)
        try:
            async with log_reader(servers.kafka.bootstrap_servers, "profile") as reader:
                meter = CpuMeter({"daemon": await sampled.pid()})
                before = await _wait_for(reader, 1)
                meter.restart()
                await _wait_for(reader, rows)
            await relay.settled()
            cpu = meter.per_row(rows - before)["daemon"]
            return read_stacks(await sampled.stacks(), RELAY).text(cpu)
        finally:
            await sampled.stop()


async def _wait_for(reader: object, records: int) -> int:
    while (count := sum((await end_offsets(reader)).values())) < records:
        await asyncio.sleep(_POLL)
    return count


async def _consumer(folder: Path, records: int, native: bool) -> str:
    async with running_servers(folder / "servers", postgres=False) as servers:
        reader = OutboxdReader("outboxd", RECORD)
        (folder / "consumer").mkdir()
        await reader.set_up(folder / "consumer", servers)
        load = await Loads(folder, servers, records).of(reader)
        report = folder / "report.json"
        environment = {EXPECTED: str(load.records), REPORT: str(report)}
        command = reader.command(load.topic, "profile")
        sampled = await Sampled.start(reader.folder, command, native=native, environment=environment)
        try:
            found = await sampled.file(report, _PATIENCE + records / _SLOWEST)
            cpu = 1e6 * float(json.loads(found)["cpu"]) / load.records
            return read_stacks(await sampled.stacks(), CONSUMER).text(cpu)
        finally:
            await sampled.stop()

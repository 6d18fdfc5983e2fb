"""What consumers are measured: outboxd, FastStream and raw aiokafka. Connect's sink has a module of its own."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from bench.children import OUTBOXD, python_module, start_child
from bench.processes import CpuMeter, peak_mib
from bench.results import Consumption
from bench.servers import Servers
from bench.tally import EXPECTED, REPORT
from bench.topic_log import committed

__all__ = ["BATCH", "RECORD", "SLOW", "Load", "Outboxd", "Peer", "Reader", "Unavailable"]

RECORD, BATCH, SLOW = "each record", "batches", "5 ms"
"""The handlers: nothing for each record, nothing for each batch, and one that waits 5 ms."""

_PATIENCE = 60
_SLOWEST = 500
"""Records a second below which a measurement is given up."""
_LINGER = 1.0
"""Seconds in which repeats may still come."""

CONFIG = """\
http: {{port: 0}}
connections:
  main: {{type: kafka, bootstrap_servers: ["{kafka}"]}}
pipelines:
  bench:
    consume: {{connection: main, topics: [{topic}], group: {group}, decode: raw, concurrency: 64, commit_every: 500ms}}
    handler: {{type: python, target: "bench.handlers:{handler}"}}
"""


class Unavailable(Exception):
    """This cannot be measured here at all; says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A topic that is full: the records of each partition."""

    topic: str
    partitions: tuple[int, ...]

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(self.partitions)

    @property
    def offsets(self) -> int:
        """The sum of all their offsets."""
        return sum(count * (count - 1) // 2 for count in self.partitions)


class Reader(ABC):
    """One way to read a topic with one kind of handler. ``share`` of the records is enough for a slow one."""

    def __init__(self, name: str, measure: str, *, share: float = 1.0) -> None:
        self.name = name
        self.measure = measure
        self.share = share

    def check(self) -> None:  # noqa: B027 -- most can be measured
        """Raises Unavailable."""

    async def set_up(self, folder: Path, servers: Servers) -> None:
        """Once, before the first measurement."""
        self.folder = folder
        self.servers = servers

    async def close(self) -> None:  # noqa: B027 -- most leave nothing
        """Once, after the last."""

    @abstractmethod
    async def read(self, load: Load, *, repeat: int) -> Consumption:
        """Read the whole topic in a new group."""


class CountingReader(Reader):
    """One whose process counts by itself (`bench.tally`)."""

    _turns = 0

    @abstractmethod
    def command(self, topic: str, group: str) -> list[str]:
        """The command line of the process."""

    async def read(self, load: Load, *, repeat: int) -> Consumption:
        """Start the process, wait for its report and a little longer, stop it in order, and ask what it committed."""
        self._turns += 1
        group = f"{self.folder.name}-{self._turns}"
        report = self.folder / f"{group}.json"
        environment = {EXPECTED: str(load.records), REPORT: str(report)}
        meter = CpuMeter(self.servers.pids)
        child = await start_child(self.folder, group, self.command(load.topic, group), environment)
        try:
            await child.file(report, _PATIENCE + load.records / _SLOWEST)
            broker = meter.per_row(load.records)
            peak = peak_mib(child.pid)
            await asyncio.sleep(_LINGER)
            child.raise_if_ended()
        finally:
            await child.stop()
        found = json.loads(report.read_text("utf-8"))
        stored = sum((await _committed(self.servers, group)).values())
        # As many as there are and yet another sum: some were lost and others came twice.
        is_other = found["count"] == load.records and found["offsets"] != load.offsets
        return Consumption(
            contender=self.name,
            repeat=repeat,
            measure=self.measure,
            records=load.records,
            rate=round(load.records / found["seconds"]),
            seconds=round(found["seconds"], 3),
            missing=1 if is_other else 0,
            extra=found["count"] - load.records + (1 if is_other else 0),
            uncommitted=load.records - stored,
            cpu={"consumer": round(1e6 * found["cpu"] / load.records, 2)} | broker,
            peak_mib=peak,
        )


async def _committed(servers: Servers, group: str) -> dict[object, int]:
    admin = AIOKafkaAdminClient(bootstrap_servers=servers.kafka.bootstrap_servers)
    await admin.start()
    try:
        return dict(await committed(admin, group))
    finally:
        await admin.close()


class Outboxd(CountingReader):
    """`outboxd run` with a Python handler."""

    def check(self) -> None:
        """Batch handlers are refused by the configuration today."""
        if self.measure == BATCH:
            raise Unavailable("outboxd has no batch handlers yet")

    def command(self, topic: str, group: str) -> list[str]:
        """Write the configuration of this run, and run it."""
        handler = {RECORD: "noop", SLOW: "slow"}[self.measure]
        config = self.folder / f"{group}.yaml"
        kafka = self.servers.kafka.bootstrap_servers
        config.write_text(CONFIG.format(kafka=kafka, topic=topic, group=group, handler=handler), "utf-8")
        return [str(OUTBOXD), "run", "-c", str(config)]


class Peer(CountingReader):
    """A library in a small program of ours. ``commits`` after each message or batch, where it can choose."""

    def __init__(self, name: str, measure: str, *, library: str, commits: bool = False, share: float = 1.0) -> None:
        super().__init__(name, measure, share=share)
        self._library = library
        self._commit = "commit" if commits else "auto"

    def check(self) -> None:
        """The library has to be installed."""
        if find_spec(self._library) is None:
            raise Unavailable(f"{self._library} is not installed (requirements/bench.txt)")

    def command(self, topic: str, group: str) -> list[str]:
        """Our program."""
        mode = {RECORD: "record", BATCH: "batch", SLOW: "slow"}[self.measure]
        kafka = self.servers.kafka.bootstrap_servers
        return python_module("bench.peer_consumer", self._library, mode, kafka, topic, group, self._commit)

"""Watches one relay at work: a drain from its first record to its last, and single rows from commit to consumer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.children import Child, python_module, start_child
from bench.inserting import insert_steadily
from bench.payload import PARTITIONS
from bench.processes import CpuMeter, peak_mib
from bench.relays import Relay
from bench.results import Drain, Latency
from bench.servers import Servers
from bench.topic_log import APPEND_TIME, end_offsets, log_reader, read_drain

__all__ = ["LEFT_OUT", "RelayWatch", "quantile"]

LEFT_OUT = 3
"""Seconds at the start of a latency run that do not count."""

_POLL = 0.02
_PATIENCE = 60
_SLOWEST = 1_000
"""Rows a second below which a drain is given up."""


class RelayWatch:
    """Measures relays on the same servers; ``folder`` takes its files."""

    def __init__(self, folder: Path, servers: Servers) -> None:
        self._folder = folder
        self._servers = servers
        self._topics = 0

    async def drain(self, relay: Relay, *, rows: int, repeat: int) -> Drain:
        """Fill in rows while the relay is off, run it until they are done, and read what came."""
        topic = await self._new_topic()
        kafka = self._servers.kafka.bootstrap_servers
        await relay.fill(topic, rows)
        async with log_reader(kafka, topic) as reader:
            try:
                async with asyncio.timeout(_PATIENCE + rows / _SLOWEST):
                    pid = await relay.begin()
                    meter = CpuMeter({"relay": pid} | self._servers.pids)
                    before = await _wait_for(reader, 1)
                    meter.restart()
                    await _wait_for(reader, rows)
                    await relay.settled()
                cpu, peak = meter.per_row(rows - before), peak_mib(pid)
            finally:
                await relay.end()
        async with asyncio.timeout(_PATIENCE + rows / _SLOWEST):
            log = await read_drain(kafka, topic, rows)
        return Drain(contender=relay.name, repeat=repeat, rows=rows, cpu=cpu, peak_mib=peak, **dataclasses.asdict(log))

    async def latency(self, relay: Relay, *, rate: int, seconds: int, repeat: int) -> Latency:
        """Write single rows at ``rate`` a second while the relay runs, and see when a consumer has each."""
        topic = await self._new_topic()
        await relay.fill(topic, 1)  # when this one has come, the relay is at work
        try:
            pid = await relay.begin()
            async with asyncio.timeout(_PATIENCE), log_reader(self._servers.kafka.bootstrap_servers, topic) as reader:
                await _wait_for(reader, 1)
            report = self._folder / f"{topic}.json"
            command = python_module(
                "bench.visible", self._servers.kafka.bootstrap_servers, topic, rate * seconds, report
            )
            consumer = await start_child(self._folder, "visible", command)
            try:
                await consumer.file(report.with_suffix(".ready"), _PATIENCE)
                carrier = {"relay": pid} if relay.carries_single_rows else {}
                meter = CpuMeter(carrier | self._servers.pids)
                committed = await insert_steadily(relay.inserter(topic), rate=rate, rows=rate * seconds)
                await _wait_for_report(consumer, report)
                cpu, peak = meter.per_row(rate * seconds), peak_mib(pid)
            finally:
                await consumer.stop()
        finally:
            await relay.end()
        found = json.loads(report.read_text("utf-8"))
        seen = {int(n): received for n, received in found["seen"].items()}
        return Latency(
            contender=relay.name,
            repeat=repeat,
            rate=rate,
            rows=len(committed),
            missing=len(committed) - len(seen),
            extra=found["extra"],
            cpu=cpu,
            peak_mib=peak,
            **_times(committed, seen, rate),
        )

    async def _new_topic(self) -> str:
        self._topics += 1
        topic = f"bench-{self._topics}"
        await self._servers.kafka.create_topic(topic, partitions=PARTITIONS, settings=APPEND_TIME)
        return topic


async def _wait_for(reader: Any, records: int) -> int:
    """Return how many records the topic has once it has ``records``; the caller sets the deadline."""
    while (count := sum((await end_offsets(reader)).values())) < records:
        await asyncio.sleep(_POLL)
    return count


async def _wait_for_report(consumer: Child, report: Path) -> None:
    """Wait until the consumer has seen everything, or for as long as something may still come: it is told to end then."""
    try:
        await consumer.file(report, _PATIENCE / 2)
    except TimeoutError:
        await consumer.stop()


def _times(committed: Sequence[int], seen: dict[int, int], rate: int) -> dict[str, float]:
    """The quantiles in milliseconds, and the rate at which rows were really committed."""
    counted = range(LEFT_OUT * rate, len(committed))
    waits = sorted((seen[n] - committed[n]) / 1e6 for n in counted if n in seen)
    span = (max(committed) - min(committed)) / 1e9
    return {
        "achieved": round(len(committed) / span, 1),
        "p50": quantile(waits, 0.5),
        "p90": quantile(waits, 0.9),
        "p99": quantile(waits, 0.99),
        "max": quantile(waits, 1.0),
    }


def quantile(ascending: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed; raises ValueError when there are none."""
    if not ascending:
        raise ValueError("none of the rows arrived")
    return round(ascending[max(0, math.ceil(share * len(ascending)) - 1)], 2)

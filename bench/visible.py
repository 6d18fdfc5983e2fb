"""The consumer that rows become visible to, in a process of its own.

    python -m bench.visible BOOTSTRAP TOPIC ROWS REPORT

It touches REPORT.ready when it reads from the topic's end, and writes REPORT when it has seen all rows, or is told to
end: a JSON object of each row's number to the time at which it was received (Unix time in ns), and how many came twice.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import uvloop

from bench.payload import number
from bench.topic_log import end_offsets, log_reader

__all__ = ["main"]

_LINGER = 1.0
"""Seconds to look for repeats after the last row."""


async def main(bootstrap_servers: str, topic: str, rows: int, report: Path) -> None:
    """Read until all rows were seen or SIGTERM came."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    seen: dict[int, int] = {}
    extra = 0
    async with log_reader(bootstrap_servers, topic) as consumer:
        for partition, end in (await end_offsets(consumer)).items():
            consumer.seek(partition, end)
        await consumer.getmany(timeout_ms=100)
        report.with_suffix(".ready").touch()
        until = float("inf")
        while time.monotonic() < until and not told.is_set():
            fetched = await consumer.getmany(timeout_ms=200)
            now = time.time_ns()
            for record in (record for records in fetched.values() for record in records):
                n = number(record.value)
                if n < 0:
                    continue  # a marker of the preparation
                if n in seen:
                    extra += 1
                seen.setdefault(n, now)
            if len(seen) >= rows and until == float("inf"):
                until = time.monotonic() + _LINGER
    written = report.with_suffix(".new")
    written.write_text(json.dumps({"seen": seen, "extra": extra}), "utf-8")
    written.replace(report)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))

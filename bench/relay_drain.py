"""Drains an outbox of so many rows through `outboxd run`, beside a raw producer in the same run.

    python bench/relay_drain.py [--rows 200000] [--repeats 3]

Rows of 400 bytes, 1,000 keys, one topic of 6 partitions, no compression, one broker, replication 1, `done: delete`. The relay
is started with the rows waiting; the time runs from the first record in the topic to the last (so the start of the process is
not in it), measured by polling the topic's end offsets. CPU and peak memory of the daemon are from /proc. The raw producer is
aiokafka's idempotent `send_batch`, one batch of 1,000 records in flight for each partition. Compare within one run only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from outboxd.dev import DevStack
from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.settings import KafkaSettings
from outboxd.ports import OutboundRecord
from outboxd.records import NO_HEADERS, TopicPartition

PARTITIONS = 6
KEYS = 1000
BYTES = 400
TICKS = os.sysconf("SC_CLK_TCK")

CONFIG = """
http: {{port: 0}}
connections:
  shop: {{type: postgres, dsn: "{dsn}"}}
  main: {{type: kafka, bootstrap_servers: ["{kafka}"]}}
pipelines:
  bench:
    outbox: {{connection: shop}}
    publish: {{connection: main, compression: none}}
"""

FILL = """
insert into outboxd.outbox (topic, key, payload)
select '{topic}', 'key-' || (n % {keys}), convert_to(rpad('{{"n": ' || n || '}}', {size}, ' '), 'UTF8')
from generate_series(1, {rows}) n
"""


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def written(broker: KafkaBroker, topic: str) -> int:
    admin = broker.admin()
    try:
        return sum((await admin.end_offsets(topic)).values())
    finally:
        await admin.close()


async def drain(stack: DevStack, broker: KafkaBroker, folder: Path, rows: int, run: int) -> Mapping[str, float]:
    topic, database = f"drain-{run}", f"drain{run}"
    await stack.create_topic(topic, partitions=PARTITIONS)
    dsn = await stack.create_database(database)
    config = folder / f"{database}.yaml"
    config.write_text(CONFIG.format(dsn=dsn, kafka=stack.bootstrap_servers), "utf-8")
    command = [str(Path(sys.executable).with_name("outboxd"))]
    subprocess.run([*command, "migrate", "-c", str(config)], check=True, stdout=subprocess.DEVNULL)
    await stack.postgres.execute(FILL.format(topic=topic, keys=KEYS, size=BYTES, rows=rows), database=database)
    await stack.postgres.execute("vacuum analyze outboxd.outbox", database=database)
    log = (folder / f"{database}.log").open("wb")
    daemon = subprocess.Popen([*command, "run", "-c", str(config)], stdout=log, stderr=log)
    admin = broker.admin()
    try:
        began = began_cpu = 0.0
        began_count = count = 0
        until = time.monotonic() + 300
        while count < rows:
            if time.monotonic() > until or daemon.poll() is not None:
                raise SystemExit(f"only {count} of {rows} rows came; see {log.name}")
            count = sum((await admin.end_offsets(topic)).values())
            if count and not began:
                began, began_cpu, began_count = time.monotonic(), cpu_seconds(daemon.pid), count
            await asyncio.sleep(0.02)
        seconds = time.monotonic() - began
        cpu = cpu_seconds(daemon.pid) - began_cpu
        await asyncio.sleep(1)
        peak = peak_mib(daemon.pid)
        left = int(await stack.postgres.execute("select count(*) from outboxd.outbox", database=database))
    finally:
        await admin.close()
        daemon.terminate()
        daemon.wait(timeout=60)
    sent = rows - began_count
    return {
        "rows/s": sent / seconds,
        "cpu us/row": 1e6 * cpu / sent,
        "peak MiB": peak,
        "left": left,
        "extra": count - rows,
    }


async def raw(stack: DevStack, broker: KafkaBroker, rows: int, run: int) -> float:
    topic = f"raw-{run}"
    await stack.create_topic(topic, partitions=PARTITIONS)
    producer = broker.relay_producer(f"outboxd.raw.{run}", compression=None, deadline=timedelta(seconds=30))
    await producer.open([])
    await producer.topic(topic)
    record = OutboundRecord(key=b"key-123", value=b"x" * BYTES, headers=NO_HEADERS, timestamp=1_700_000_000_000)
    records = [record] * 1000

    async def lane(partition: int) -> None:
        for _ in range(rows // PARTITIONS // len(records)):
            await producer.send(TopicPartition(topic, partition), producer.build(records))

    began = time.monotonic()
    await asyncio.gather(*(lane(partition) for partition in range(PARTITIONS)))
    seconds = time.monotonic() - began
    await producer.close()
    return (rows // PARTITIONS // len(records) * len(records) * PARTITIONS) / seconds


async def main() -> None:
    parser = argparse.ArgumentParser(description="Drain an outbox beside a raw producer.")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    drains: list[Mapping[str, float]] = []
    raws: list[float] = []
    with tempfile.TemporaryDirectory(prefix="outboxd-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        async with DevStack(folder / "servers") as stack:
            broker = KafkaBroker(KafkaSettings(type="kafka", bootstrap_servers=(stack.bootstrap_servers,)))
            for run in range(arguments.repeats):
                raws.append(await raw(stack, broker, arguments.rows, run))
                drains.append(await drain(stack, broker, folder, arguments.rows, run))
                print(f"run {run}: raw {raws[-1]:,.0f}/s; " + ", ".join(f"{k} {v:,.1f}" for k, v in drains[-1].items()))
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {arguments.rows:,} rows")
    for key in drains[0]:
        values = [drained[key] for drained in drains]
        print(f"{key}: median {statistics.median(values):,.1f} ({min(values):,.1f} to {max(values):,.1f})")
    print(f"raw send_batch/s: median {statistics.median(raws):,.0f} ({min(raws):,.0f} to {max(raws):,.0f})")
    ratios = [drained["rows/s"] / one for drained, one in zip(drains, raws, strict=True)]
    print(f"of raw: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


asyncio.run(main())

"""The baseline: aiokafka's idempotent producer sending built batches, one in flight for each partition.

    python -m bench.raw_producer BOOTSTRAP TOPIC ROWS KEYS DONE

It touches DONE when the last batch is acknowledged, then waits for SIGTERM, so that its CPU can still be read.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from pathlib import Path
from typing import Any

import uvloop
from aiokafka import AIOKafkaProducer

from bench.payload import key, value
from outboxd.kafka.partitioner import partition_of

__all__ = ["main"]

_BATCH_ROWS = 1_000
_BATCH_BYTES = 1_000_000


async def _send(producer: Any, topic: str, partition: int, numbers: list[int], keys: int) -> None:
    at = 0
    while at < len(numbers):
        batch = producer.create_batch()
        now = int(time.time() * 1000)
        for n in numbers[at : at + _BATCH_ROWS]:
            headers = [("id", b"%036d" % n)]
            if batch.append(timestamp=now, key=key(n, keys), value=value(n), headers=headers) is None:
                break
            at += 1
        await (await producer.send_batch(batch, topic, partition=partition))


async def main(bootstrap_servers: str, topic: str, rows: int, keys: int) -> None:
    """Send ``rows`` records; returns when all are acknowledged."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        enable_idempotence=True,
        acks="all",
        linger_ms=0,
        max_batch_size=_BATCH_BYTES,
    )
    await producer.start()
    try:
        partitions = len(await producer.partitions_for(topic))
        # Where each row goes is known before the clock runs, as a relay knows it of its keys.
        places = [partition_of(key(n, keys), partitions) for n in range(keys)]
        numbers: list[list[int]] = [[] for _ in range(partitions)]
        for n in range(rows):
            numbers[places[n % keys]].append(n)
        async with asyncio.TaskGroup() as lanes:
            for partition in range(partitions):
                lanes.create_task(_send(producer, topic, partition, numbers[partition], keys), name=f"lane {partition}")
    finally:
        await producer.stop()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvloop.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    Path(sys.argv[5]).touch()
    signal.pause()

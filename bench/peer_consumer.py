"""One consumer of a peer in a process of its own; it reads until SIGTERM and leaves in order.

python -m bench.peer_consumer aiokafka|faststream record|batch|slow BOOTSTRAP TOPIC GROUP auto|commit
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import uvloop

from bench.handlers import SLOW_SECONDS
from bench.tally import Tally

__all__ = ["COMMIT_SECONDS", "CONCURRENCY", "main"]

COMMIT_SECONDS = 0.5
CONCURRENCY = 64
_BATCH = 500
_SLOW_BATCH = 2_000


async def aiokafka(mode: str, bootstrap_servers: str, topic: str, group: str, told: asyncio.Event) -> None:
    """What one writes by hand: `getmany`, a handler awaited, and the position committed every half second."""
    from aiokafka import AIOKafkaConsumer

    tally = Tally.from_environment()
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=_SLOW_BATCH if mode == "slow" else _BATCH,
    )
    work = {"record": _each, "batch": _together, "slow": _by_key}[mode]
    await consumer.start()
    try:
        due = time.monotonic() + COMMIT_SECONDS
        while not told.is_set():
            fetched = await consumer.getmany(timeout_ms=100)
            for records in fetched.values():
                await work(records, tally)
            if time.monotonic() >= due and consumer.assignment():
                await consumer.commit()
                due = time.monotonic() + COMMIT_SECONDS
        await consumer.commit()
    finally:
        await consumer.stop()


async def _handle(record: Any, tally: Tally) -> None:
    tally.one(record.offset)


async def _handle_batch(records: Sequence[Any], tally: Tally) -> None:
    tally.many([record.offset for record in records])


async def _each(records: Sequence[Any], tally: Tally) -> None:
    for record in records:
        await _handle(record, tally)


async def _together(records: Sequence[Any], tally: Tally) -> None:
    await _handle_batch(records, tally)


async def _by_key(records: Sequence[Any], tally: Tally) -> None:
    """Keys side by side, the records of one key in turn; the next batch when all are done."""
    lanes: dict[bytes, list[Any]] = defaultdict(list)
    for record in records:
        lanes[record.key].append(record)
    at_once = asyncio.Semaphore(CONCURRENCY)

    async def lane(mine: Sequence[Any]) -> None:
        for record in mine:
            async with at_once:
                await asyncio.sleep(SLOW_SECONDS)
            tally.one(record.offset)

    async with asyncio.TaskGroup() as tasks:
        for mine in lanes.values():
            tasks.create_task(lane(mine), name="lane")


async def faststream(
    mode: str, bootstrap_servers: str, topic: str, group: str, told: asyncio.Event, *, commits: bool
) -> None:
    """FastStream's subscriber on the record as it came: no decoding, no validation.

    Committed in the background as it does by default, or, with ``commits``, after each message or batch.
    """
    from faststream import AckPolicy
    from faststream.kafka import KafkaBroker

    tally = Tally.from_environment()

    async def undecoded(message: Any) -> Any:
        return message.raw_message

    async def batch(records: Sequence[Any]) -> None:
        tally.many([record.offset for record in records])

    async def slow(record: Any) -> None:
        await asyncio.sleep(SLOW_SECONDS)
        tally.one(record.offset)

    async def single(record: Any) -> None:
        tally.one(record.offset)

    handler, options = {
        "batch": (batch, {"batch": True, "max_records": _BATCH}),
        "slow": (slow, {"max_workers": CONCURRENCY}),
        "record": (single, {}),
    }[mode]
    policy = AckPolicy.REJECT_ON_ERROR if commits else AckPolicy.ACK_FIRST
    broker = KafkaBroker(bootstrap_servers, logger=None, apply_types=False, decoder=undecoded)
    broker.subscriber(topic, group_id=group, auto_offset_reset="earliest", ack_policy=policy, **options)(handler)
    await broker.start()
    try:
        await told.wait()
    finally:
        await broker.stop()


async def main(arguments: Sequence[str]) -> None:
    """Read until SIGTERM."""
    peer, mode, bootstrap_servers, topic, group, commit = arguments
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    if peer == "aiokafka":
        await aiokafka(mode, bootstrap_servers, topic, group, told)
    else:
        await faststream(mode, bootstrap_servers, topic, group, told, commits=commit == "commit")


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1:]))

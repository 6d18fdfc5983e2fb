# ruff: noqa: SLF001 - the one module that touches private parts of aiokafka
"""The private parts of aiokafka 0.14 that outboxd depends on, each behind a function.

`tests/unit/kafka/test_internals.py` pins them: when the library changes, it fails there and not in production.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, Final

import aiokafka.structs

from outboxd.kafka.bounded import end
from outboxd.kafka.fencing import Epoch

__all__ = [
    "abandon",
    "adopt_epoch",
    "client_of",
    "close_client",
    "committed_offset",
    "is_stopped",
    "release_unstarted",
    "sender_task",
    "stop_consumer_tasks",
    "touch",
    "withdraw",
]

_CLOSING: Final = 1.0
_NOWHERE: Final = aiokafka.structs.TopicPartition("", -1)


# -- producer --------------------------------------------------------------------------------------------------------


async def adopt_epoch(producer: Any, epoch: Epoch) -> None:
    """Give a bootstrapped idempotent producer its id and epoch, then start its sender."""
    producer._txn_manager.set_pid_and_epoch(epoch.producer_id, epoch.epoch)
    await producer._sender.start()


def sender_task(producer: Any) -> asyncio.Task[None] | None:
    """The task that sends; None before the start. When it is done nothing is sent any more."""
    task: asyncio.Task[None] | None = producer._sender.sender_task
    return task


def is_stopped(producer: Any) -> bool:
    """True after `stop` was called, whether or not it came to its end."""
    return bool(producer._closed)


def withdraw(producer: Any, topic: str, partition: int) -> bool | None:
    """Take the batch that waits for this partition's leader out of the queue.

    None when there is none (it is in flight, or done). True when it was never sent, so that its sequence numbers are
    still free; False when an attempt was made.
    """
    accumulator = producer._message_accumulator
    waiting = accumulator._batches.pop(aiokafka.structs.TopicPartition(topic, partition), None)
    if not waiting:
        return None
    never_sent = all(batch.retry_count == 0 for batch in waiting)
    for batch in waiting:
        _fail(accumulator, batch, aiokafka.errors.UnknownTopicOrPartitionError(topic))
    return never_sent


async def abandon(producer: Any, error: Exception) -> None:
    """End a producer at once: queued batches are never sent, every future gets ``error``, no task is left.

    An orderly `stop` waits for the broker, for ever if need be, and one that was given up on goes on delivering later.
    """
    producer._closed = True
    accumulator = producer._message_accumulator
    accumulator._closed = True
    task = sender_task(producer)
    if task is not None and not task.done():
        task.cancel()
    await close_client(producer.client)
    while task is not None and not task.done():
        # Its produce tasks are awaited one by one when it is cancelled: each needs a push of its own.
        task.cancel()
        await asyncio.wait({task}, timeout=0.02)
    if task is not None and not task.cancelled():
        task.exception()
    for batch in (*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches):
        _fail(accumulator, batch, error)
    await close_client(producer.client)


def release_unstarted(owner: Any) -> None:
    """Mark a producer or consumer that never started as closed, so that it is collected without a warning."""
    owner._closed = True


def _fail(accumulator: Any, batch: Any, error: Exception) -> None:
    if batch.retry_count:
        # Once tried, it is taken out of this set when it ends; back in the queue it is not in it, which would raise.
        accumulator._pending_batches.add(batch)
    batch.failure(error)
    for future in (batch.future, batch._drain_waiter):
        if future.done() and not future.cancelled():
            future.exception()  # retrieved: nobody else may be waiting


# -- client ----------------------------------------------------------------------------------------------------------


async def close_client(client: Any) -> None:
    """Close a client's connections without flushing them, and end its metadata task.

    A frozen broker reads nothing, so a connection with unsent bytes would never close in order, and would deliver them
    when the broker wakes up.
    """
    for connection in list(client._conns.values()):
        if connection._writer is not None:
            connection._writer.transport.abort()
    await end(asyncio.create_task(_close(client), name="kafka: close the client"), seconds=_CLOSING, wait_first=True)


async def _close(client: Any) -> None:
    await client.close()


# -- consumer --------------------------------------------------------------------------------------------------------


def client_of(consumer: Any) -> Any:
    """The consumer's client, to ask for topics and offsets."""
    return consumer._client


async def committed_offset(consumer: Any, partition: Any) -> tuple[int, str] | None:
    """The committed offset and its metadata (the public `committed` leaves the metadata out); loops while it fails."""
    found = await consumer._coordinator.fetch_committed_offsets([partition])
    entry = found.get(partition)
    return None if entry is None or entry.offset < 0 else (entry.offset, entry.metadata)


async def touch(consumer: Any) -> None:
    """Tell the group membership that this consumer lives, without taking a record.

    A member that fell out (`max_poll_interval`), or that has only paused partitions, joins and stays only while
    somebody polls. Polling a partition that cannot exist leaves every buffer alone. Raises what the coordinator has.
    """
    await consumer.getmany(_NOWHERE, timeout_ms=0)


async def stop_consumer_tasks(consumer: Any) -> None:
    """End the tasks of a consumer whose `stop` did not come to its end."""
    owners: list[tuple[object, tuple[str, ...]]] = [
        (consumer._fetcher, ("_fetch_task",)),
        (
            consumer._coordinator,
            ("_coordination_task", "_heartbeat_task", "_commit_refresh_task", "_reset_committed_task"),
        ),
    ]
    for owner, names in owners:
        for task in [getattr(owner, name, None) for name in names]:
            if isinstance(task, asyncio.Task):
                await end(task)
    # Only now: until it ended, the fetch task may have begun another request.
    for task in list(getattr(consumer._fetcher, "_pending_tasks", ())):
        await end(task)
    await close_client(consumer._client)

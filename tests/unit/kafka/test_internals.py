"""The private parts of aiokafka that one module touches: this fails when the library moves them."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Any

import aiokafka
import pytest
from aiokafka.structs import TopicPartition

from outboxd.kafka.internals import abandon, is_stopped, release_unstarted, sender_task, withdraw


def test_the_library_is_the_one_that_was_looked_into() -> None:
    assert version("aiokafka").startswith("0.14.")


async def test_a_producer_has_the_parts_that_are_touched() -> None:
    producer: Any = aiokafka.AIOKafkaProducer(enable_idempotence=True)
    assert producer._closed is False
    assert sender_task(producer) is None
    assert callable(producer._txn_manager.set_pid_and_epoch)
    assert callable(producer._sender.start)
    accumulator = producer._message_accumulator
    assert accumulator._closed is False
    assert accumulator._batches == {}
    assert not accumulator._pending_batches
    assert producer.client._conns == {}
    release_unstarted(producer)
    assert is_stopped(producer)


async def test_a_consumer_has_the_parts_that_are_touched() -> None:
    consumer: Any = aiokafka.AIOKafkaConsumer(group_id="g")
    for name in ("_client", "_coordinator", "_fetcher", "_closed"):
        assert hasattr(consumer, name)
    release_unstarted(consumer)


async def test_an_abandoned_producer_sends_nothing_and_leaves_no_task_and_no_future() -> None:
    producer: Any = aiokafka.AIOKafkaProducer(enable_idempotence=True)
    builder = producer.create_batch()
    builder.append(timestamp=1, key=b"k", value=b"v")
    future = await producer._message_accumulator.add_batch(builder, TopicPartition("t", 0), 1)
    before = asyncio.all_tasks()
    await abandon(producer, TimeoutError("given up"))
    assert isinstance(future.exception(), TimeoutError)
    assert asyncio.all_tasks() <= before


@pytest.mark.parametrize("ending", ["withdrawn", "abandoned"])
async def test_a_batch_that_was_tried_before_ends_without_an_error_in_a_callback(ending: str) -> None:
    failed: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    producer: Any = aiokafka.AIOKafkaProducer(enable_idempotence=True)
    producer._txn_manager.set_pid_and_epoch(1, 0)
    accumulator = producer._message_accumulator
    builder = producer.create_batch()
    builder.append(timestamp=1, key=b"k", value=b"v")
    partition = TopicPartition("t", 0)
    future = await accumulator.add_batch(builder, partition, 1)
    accumulator.reenqueue(accumulator._pop_batch(partition))
    if ending == "withdrawn":
        assert withdraw(producer, "t", 0) is False, "it may have been written"
    await abandon(producer, TimeoutError("given up"))
    assert future.exception() is not None
    await asyncio.sleep(0)
    assert failed == []
    assert not accumulator._pending_batches

"""Questions about a cluster, and bounded reads without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiokafka
import aiokafka.errors as kafka
from aiokafka.structs import TopicPartition as KafkaPartition

from outboxd.errors import BrokerUnreachable
from outboxd.kafka.bounded import call, end
from outboxd.kafka.cluster import EARLIEST, LATEST, TopicDirectory, cluster_id, leaders, list_offsets
from outboxd.kafka.connecting import diagnose
from outboxd.kafka.conversion import raw_record
from outboxd.kafka.internals import client_of, stop_consumer_tasks
from outboxd.kafka.library_logs import captured_errors
from outboxd.kafka.security import ClientOptions
from outboxd.kafka.translation import translate
from outboxd.ports import TopicInfo
from outboxd.records import RawRecord, TopicPartition

__all__ = ["KafkaAdmin"]

_POLL_MS: Final = 250


class KafkaAdmin:
    """`outboxd.ports.Admin` on a real broker; connects at the first question, and again after a failure to connect."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._answer = options.answer_deadline.total_seconds()
        self._lock = asyncio.Lock()
        self._consumer: Any = None
        self._topics: TopicDirectory | None = None

    async def cluster_id(self) -> str:
        """The cluster's id. Raises BrokerUnreachable, BrokerDenied."""
        return await cluster_id(await self._client(), seconds=self._answer)

    async def topic(self, name: str) -> TopicInfo:
        """Look a topic up without making it. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        await self._client()
        assert self._topics is not None
        return await self._topics.get(name)

    async def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        """For each partition the offset after its last record. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        client = await self._client()
        partitions = [TopicPartition(topic, number) for number in await leaders(client, topic, seconds=self._answer)]
        return await list_offsets(client, partitions, LATEST, seconds=self._answer)

    async def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Up to ``limit`` records from ``offset`` on, or from the log's start when that is later.

        Empty only when no record stands between there and the end at the time of the call. Raises FetchUndecodable,
        TopicUnknown, TopicDenied, BrokerUnreachable.
        """
        client = await self._client()
        first = (await list_offsets(client, [partition], EARLIEST, seconds=self._answer))[partition]
        until = (await list_offsets(client, [partition], LATEST, seconds=self._answer))[partition]
        start = max(first, offset)
        if start >= until:
            return ()
        async with self._lock:
            return await self._read(partition, start, until, limit)

    async def _read(self, partition: TopicPartition, start: int, until: int, limit: int) -> Sequence[RawRecord]:
        consumer = self._consumer
        if consumer is None:
            raise BrokerUnreachable("the connection was closed")
        place = KafkaPartition(*partition)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._answer
        try:
            consumer.assign([place])
            consumer.seek(place, start)
            while loop.time() < deadline:
                fetched = await consumer.getmany(place, timeout_ms=_POLL_MS, max_records=limit)
                records = [raw_record(record) for batch in fetched.values() for record in batch]
                if records:
                    return records
                position = await call(
                    consumer.position(place), seconds=self._answer, doing=f"tell where {partition} is"
                )
                if position >= until:
                    return ()  # only markers
        except (kafka.KafkaError, kafka.IllegalOperation, UnicodeDecodeError, OSError) as error:
            raise translate(error, doing=f"read {partition}", topic=partition.topic) from error
        raise BrokerUnreachable(f"{partition} gave no records within {self._answer:g} s")

    async def _client(self) -> Any:
        async with self._lock:
            if self._consumer is None:
                await self._connect()
            return client_of(self._consumer)

    async def _connect(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            **self._options.arguments(), enable_auto_commit=False, auto_offset_reset="none"
        )
        servers = ", ".join(self._options.bootstrap_servers)
        with captured_errors() as causes:
            try:
                await call(
                    consumer.start(),
                    seconds=self._options.connect_deadline.total_seconds(),
                    doing=f"connect to {servers}",
                )
            except BaseException as error:
                await self._stop(consumer)
                if isinstance(error, BrokerUnreachable):
                    raise diagnose(error, causes, servers=servers) from error
                raise
        self._consumer = consumer
        self._topics = TopicDirectory(client_of(consumer), seconds=self._answer)

    async def close(self) -> None:
        """Leave no task behind."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._stop(consumer)

    async def _stop(self, consumer: Any) -> None:
        stopping = asyncio.create_task(consumer.stop(), name="kafka: stop the reader")
        try:
            await end(stopping, seconds=self._options.close_deadline.total_seconds(), wait_first=True)
        finally:
            await stop_consumer_tasks(consumer)

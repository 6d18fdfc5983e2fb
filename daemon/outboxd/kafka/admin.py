"""Questions about a cluster, and bounded reads without a group."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiokafka
import aiokafka.errors as kafka
from aiokafka.client import AIOKafkaClient
from aiokafka.structs import TopicPartition as KafkaPartition

from outboxd.errors import BrokerUnreachable
from outboxd.kafka.bounded import call, end
from outboxd.kafka.cluster import EARLIEST, LATEST, TopicDirectory, cluster_id, leaders, list_offsets
from outboxd.kafka.connecting import connect
from outboxd.kafka.conversion import raw_record
from outboxd.kafka.internals import close_client, stop_consumer_tasks
from outboxd.kafka.security import ClientOptions
from outboxd.kafka.translation import translate
from outboxd.ports import TopicInfo
from outboxd.records import RawRecord, TopicPartition

__all__ = ["KafkaAdmin"]

_POLL_MS: Final = 50


class KafkaAdmin:
    """`outboxd.ports.Admin` on a real broker; connects at the first question, and again after a failure to connect.

    Questions have connections of their own: a broker answers those of one connection in turn, so that behind a fetch
    which waits for records each question would wait too.
    """

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._answer = options.answer_deadline.total_seconds()
        self._connecting = asyncio.Lock()
        self._reading = asyncio.Lock()
        self._client: AIOKafkaClient | None = None
        self._topics: TopicDirectory | None = None
        self._reader: Any = None

    async def cluster_id(self) -> str:
        """The cluster's id. Raises BrokerUnreachable, BrokerDenied."""
        return await cluster_id(await self._connected(), seconds=self._answer)

    async def topic(self, name: str) -> TopicInfo:
        """Look a topic up without making it. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        await self._connected()
        assert self._topics is not None
        return await self._topics.get(name)

    async def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        """For each partition the offset after its last record. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        client = await self._connected()
        partitions = [TopicPartition(topic, number) for number in await leaders(client, topic, seconds=self._answer)]
        return await list_offsets(client, partitions, LATEST, seconds=self._answer)

    async def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Up to ``limit`` records from ``offset`` on, or from the log's start when that is later.

        Empty only when no record stands between there and the end at the time of the call. Raises FetchUndecodable,
        TopicUnknown, TopicDenied, BrokerUnreachable.
        """
        client = await self._connected()
        first = (await list_offsets(client, [partition], EARLIEST, seconds=self._answer))[partition]
        until = (await list_offsets(client, [partition], LATEST, seconds=self._answer))[partition]
        start = max(first, offset)
        if start >= until:
            return ()
        async with self._reading:
            return await self._read(partition, start, until, limit)

    async def _read(self, partition: TopicPartition, start: int, until: int, limit: int) -> Sequence[RawRecord]:
        consumer = await self._reader_started()
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
        finally:
            if place in consumer.assignment():
                consumer.pause(place)  # fetch nothing until the next read
        raise BrokerUnreachable(f"{partition} gave no records within {self._answer:g} s")

    async def _connected(self) -> AIOKafkaClient:
        async with self._connecting:
            if self._client is None:
                client = AIOKafkaClient(**self._options.arguments())
                try:
                    await connect(client, self._options)
                except BaseException:
                    await close_client(client)
                    raise
                self._client = client
                self._topics = TopicDirectory(client, seconds=self._answer)
            return self._client

    async def _reader_started(self) -> Any:
        if self._reader is None:
            reader = aiokafka.AIOKafkaConsumer(
                **self._options.arguments(),
                enable_auto_commit=False,
                auto_offset_reset="none",
                fetch_max_wait_ms=_POLL_MS,
            )
            try:
                seconds = self._options.connect_deadline.total_seconds()
                await call(reader.start(), seconds=seconds, doing="connect for reading")
            except BaseException:
                await self._stop(reader)
                raise
            self._reader = reader
        return self._reader

    async def close(self) -> None:
        """Leave no task behind."""
        reader, self._reader = self._reader, None
        client, self._client = self._client, None
        if reader is not None:
            await self._stop(reader)
        if client is not None:
            await close_client(client)

    async def _stop(self, reader: Any) -> None:
        stopping = asyncio.create_task(reader.stop(), name="kafka: stop the reader")
        try:
            await end(stopping, seconds=self._options.close_deadline.total_seconds(), wait_first=True)
        finally:
            await stop_consumer_tasks(reader)

"""The shared producer for single records: one after the other within a partition, each with a position or an error."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Final

from outboxd.errors import BrokerError, ProducerWedged, RecordRejected, SendOutcomeUnknown, TopicUnknown
from outboxd.kafka.partitioner import partition_of
from outboxd.ports import OutboundRecord, TopicInfo
from outboxd.records import Headers, Position, TopicPartition
from outboxd.testing.fakes.kafka.batch import batch_size
from outboxd.testing.fakes.kafka.brokers import Brokers
from outboxd.testing.fakes.kafka.connection import CLOSE_DEADLINE, Connection
from outboxd.testing.fakes.kafka.idempotent import IdempotentClient

__all__ = ["FakeSender"]

_ONE: Final = 1


class FakeSender:
    """The sender port. A producer object that failed is replaced before the next record."""

    def __init__(self, brokers: Brokers, deadline: timedelta) -> None:
        self._brokers = brokers
        self._deadline = deadline.total_seconds()
        self._client: IdempotentClient | None = None
        self._opening = asyncio.Lock()
        self._turns: dict[TopicPartition, asyncio.Lock] = {}
        self._spread = itertools.count()
        self._sending = 0
        self._idle = asyncio.Event()
        self._is_closed = False
        self._is_over = False

    async def send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int | None = None
    ) -> Position:
        """Publish one record and wait for its acknowledgement."""
        self._require_open()
        record = OutboundRecord(key=key, value=value, headers=headers, timestamp=timestamp)
        info = await (await self._opened()).topic(topic)
        self._require_open()
        _fits(info, record)
        number = next(self._spread) % info.partitions if key is None else partition_of(key, info.partitions)
        partition = TopicPartition(topic, number)
        self._sending += 1
        try:
            async with self._turns.setdefault(partition, asyncio.Lock()):
                return Position(*partition, await self._attempt(partition, record))
        finally:
            self._sending -= 1
            if not self._sending:
                self._idle.set()

    async def _attempt(self, partition: TopicPartition, record: OutboundRecord) -> int:
        client = await self._opened()
        batch = client.build([record], most=_ONE)
        try:
            return await client.send(partition, batch)
        except TopicUnknown:
            raise  # nothing was handed over
        except BrokerError as error:
            await self._replace(client)
            if isinstance(error, ProducerWedged):
                raise SendOutcomeUnknown(error.message) from error
            raise

    async def _opened(self) -> IdempotentClient:
        async with self._opening:
            if self._client is None:
                self._require_going()
                connection = Connection(self._brokers)
                await connection.connect()
                client = IdempotentClient(connection, deadline=self._deadline)
                client.adopt(
                    await connection.ask("init_producer_id", lambda: self._brokers.transactions.init_producer_id(None))
                )
                self._require_going()
                self._client = client
            return self._client

    def _require_open(self) -> None:
        if self._is_closed:
            raise ProducerWedged("the sender is closed")

    def _require_going(self) -> None:
        if self._is_over:
            raise ProducerWedged("the sender is closed")

    async def _replace(self, client: IdempotentClient) -> None:
        if self._client is client:
            self._client = None
        await client.abandon()

    async def close(self) -> None:
        """Send what waits, wait a while for it, then give up."""
        self._is_closed = True
        if self._sending:
            self._idle.clear()
            try:
                async with asyncio.timeout(CLOSE_DEADLINE):
                    await self._idle.wait()
            except TimeoutError:
                pass
        self._is_over = True
        client, self._client = self._client, None
        if client is not None:
            await client.abandon()


def _fits(info: TopicInfo, record: OutboundRecord) -> None:
    try:
        size = batch_size([record])
    except UnicodeEncodeError:
        return  # building it will tell
    if info.max_message_bytes is not None and size > info.max_message_bytes:
        raise RecordRejected(f"the record is too large for topic {info.name}, which takes {info.max_message_bytes}")

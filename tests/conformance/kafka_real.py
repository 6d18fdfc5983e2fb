"""A Kafka for stories on a real broker, through the adapters of the daemon."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, RecordsToDelete
from aiokafka.record.util import calc_crc32c
from aiokafka.structs import TopicPartition as KafkaPartition

from outboxd.dev import KafkaServer
from outboxd.dev.wire import KafkaWire
from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.consumer import KafkaConsumer
from outboxd.kafka.fencing import Epoch, take_epoch
from outboxd.kafka.idempotent import IdempotentProducer
from outboxd.kafka.internals import stop_consumer_tasks
from outboxd.kafka.settings import KafkaSettings
from outboxd.ports import Batch, OutboundRecord
from outboxd.records import TopicPartition
from tests.conformance.kafka_world import Member, World, Writes, an_id

__all__ = ["RealWorld"]


class _Twin:
    """A producer object on an id and epoch that it was given."""

    def __init__(self, world: RealWorld) -> None:
        options = world.factory._options
        self.client = IdempotentProducer(options, compression=None, deadline=timedelta(seconds=10))

    def build(self, records: Sequence[OutboundRecord]) -> Batch:
        return self.client.build(records)

    async def send(self, partition: TopicPartition, batch: Any) -> int:
        return await self.client.send(partition, batch)


class RealWorld(World):
    """The story on a real broker; ``server`` when it may be broken."""

    def __init__(self, bootstrap: str, server: KafkaServer | None = None) -> None:
        is_hasty = server is not None  # an answer that never comes is not waited for longer than needed
        self.factory = KafkaBroker(KafkaSettings(type="kafka", bootstrap_servers=(bootstrap,)))
        self.factory._options = replace(
            self.factory._options,
            metadata_max_age=timedelta(seconds=1),
            connect_deadline=timedelta(seconds=2 if is_hasty else 10),
            answer_deadline=timedelta(seconds=1.5 if is_hasty else 10),
            close_deadline=timedelta(seconds=1.5),
        )
        super().__init__(self.factory)
        self._bootstrap = bootstrap
        self._server = server
        host, port = bootstrap.split(",", maxsplit=1)[0].rsplit(":", 1)
        self._wire = KafkaWire(host=host, port=int(port), deadline=15)
        self._twins: list[_Twin] = []

    async def twins(self) -> tuple[Writes, Writes]:
        first, second = _Twin(self), _Twin(self)
        self._twins += [first, second]
        epoch = await first.client.open(lambda client: take_epoch(client, an_id(), [], seconds=10))

        async def same(client: object) -> Epoch:
            return epoch

        await second.client.open(same)
        return first, second

    async def topic(
        self,
        partitions: int = 1,
        *,
        max_message_bytes: int | None = None,
        before: int | None = None,
        after: int | None = None,
        name: str | None = None,
    ) -> str:
        name = name or f"t-{uuid.uuid4().hex[:12]}"
        limits = {
            "max.message.bytes": max_message_bytes,
            "message.timestamp.before.max.ms": before,
            "message.timestamp.after.max.ms": after,
        }
        settings = {limit: str(value) for limit, value in limits.items() if value is not None}
        await self._wire.make_topic(name, partitions=partitions, settings=settings)
        return name

    async def delete_topic(self, name: str) -> None:
        await self._administer(lambda admin: admin.delete_topics([name]))
        async with asyncio.timeout(10):
            while await self._wire.has_leaders(name):
                await asyncio.sleep(0.02)

    async def add_partitions(self, name: str, total: int) -> None:
        await self._administer(lambda admin: admin.create_partitions({name: NewPartitions(total)}))

    async def trim(self, partition: TopicPartition, start: int) -> None:
        wanted = {KafkaPartition(*partition): RecordsToDelete(before_offset=start)}
        await self._administer(lambda admin: admin.delete_records(wanted))

    async def _administer(self, work: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._bootstrap)
        await admin.start()
        try:
            await work(admin)
        finally:
            await admin.close()

    async def append_undecodable(self, partition: TopicPartition) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._bootstrap)
        await producer.start()
        try:
            builder = producer.create_batch()
            builder.append(timestamp=None, key=b"k", value=b"v", headers=[("~~~~", b"")])
            batch = bytearray(builder._build())
            at = batch.index(b"~~~~")
            batch[at : at + 4] = b"\xff\xfe\xfd\xfc"
            batch[17:21] = calc_crc32c(bytes(batch[21:])).to_bytes(4, "big")
            builder._buffer = bytes(batch)
            acknowledged = await producer.send_batch(builder, partition.topic, partition=partition.partition)
            await acknowledged
        finally:
            await producer.stop()

    @property
    def server(self) -> KafkaServer:
        """The broker, to be broken."""
        assert self._server is not None, "the story is not marked as one that breaks its broker"
        return self._server

    def freeze(self) -> None:
        self.server.pause()

    def thaw(self) -> None:
        if self._server is not None and self._server.is_running:
            self._server.resume()

    async def kill(self) -> None:
        await self.server.kill()

    async def restart(self) -> None:
        await self.server.start()

    async def crash(self, member: Member) -> None:
        member.forget()
        assert isinstance(member.port, KafkaConsumer)
        consumer, member.port._consumer = member.port._consumer, None
        await member.port.stop()
        consumer._closed = True  # or it complains when it is collected
        await stop_consumer_tasks(consumer)

    def stand_still(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        for twin in self._twins:
            await twin.client.abandon()
        await super().close()

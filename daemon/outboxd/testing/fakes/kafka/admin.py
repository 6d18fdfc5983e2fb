"""Questions about the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from outboxd.ports import TopicInfo
from outboxd.records import RawRecord, TopicPartition
from outboxd.testing.fakes.kafka.brokers import Brokers
from outboxd.testing.fakes.kafka.connection import Connection, Directory

__all__ = ["FakeAdmin"]

_CLUSTER_ID: Final = "cluster-in-memory"


class FakeAdmin:
    """The admin port; connects at the first question."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._connection = Connection(brokers)
        self._directory = Directory(self._connection)
        self._is_connected = False

    async def cluster_id(self) -> str:
        """The same for each cluster in memory."""
        await self._connect()
        return await self._connection.ask("cluster_id", lambda: _CLUSTER_ID)

    async def topic(self, name: str) -> TopicInfo:
        """The topic's settings, remembered for a while."""
        await self._connect()
        return await self._directory.get(name)

    async def read(self, partition: TopicPartition, offset: int, limit: int) -> Sequence[RawRecord]:
        """Records from an offset on."""
        await self._connect()
        return await self._connection.ask("read", lambda: self._brokers.read(partition, offset, limit))

    async def end_offsets(self, topic: str) -> Mapping[TopicPartition, int]:
        """The end of each partition."""
        await self._connect()

        def effect() -> Mapping[TopicPartition, int]:
            self._brokers.describe(topic)
            return {partition: self._brokers.end(partition) for partition in self._brokers.partitions_of(topic)}

        return await self._connection.ask("end_offsets", effect)

    async def close(self) -> None:
        """Nothing is open."""
        self._is_connected = False

    async def _connect(self) -> None:
        if not self._is_connected:
            await self._connection.connect()
            self._is_connected = True

"""A Kafka for stories in memory: `FakeCluster`, in virtual time."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from outboxd.records import TopicPartition
from outboxd.testing.fakes.clock import FakeClock, VirtualTimeLoop
from outboxd.testing.fakes.faults import Faults
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from outboxd.testing.fakes.kafka.consumer import FakeConsumer
from tests.conformance.kafka_world import Member, World, Writes

__all__ = ["DoubleWorld"]

_T = TypeVar("_T")


class _Sockets(Faults):
    """The way to brokers that may be frozen: requests lie in their sockets, and are carried out when they go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_frozen = False
        self._waiting: list[tuple[Callable[[], object], asyncio.Future[Any]]] = []

    async def around(self, call: str, effect: Callable[[], _T]) -> _T:
        if not self.is_frozen:
            return await super().around(call, effect)
        answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._waiting.append((effect, answer))
        return await answer

    def thaw(self) -> None:
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for effect, answer in waiting:
            try:
                result = effect()
            except Exception as error:  # noqa: BLE001  # whatever the broker raised is its answer
                if not answer.done():
                    answer.set_exception(error)
            else:
                if not answer.done():
                    answer.set_result(result)


class DoubleWorld(World):
    """The story on `FakeCluster`."""

    def __init__(self) -> None:
        self._sockets = _Sockets()
        self.cluster = FakeCluster(FakeClock(), self._sockets)
        self.cluster.shortest_session = 1.0
        super().__init__(self.cluster)

    async def twins(self) -> tuple[Writes, Writes]:
        first = self.cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
        await first.open([])
        second = self.cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
        second.client.adopt((first.client.producer_id, first.client.epoch))
        self._producers += [first, second]
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
        limits = {"max_message_bytes": max_message_bytes, "before": before, "after": after}
        self.cluster.create_topic(
            name, partitions, **{limit: value for limit, value in limits.items() if value is not None}
        )
        return name

    async def delete_topic(self, name: str) -> None:
        self.cluster.delete_topic(name)

    async def add_partitions(self, name: str, total: int) -> None:
        self.cluster.create_topic(name, total)

    async def trim(self, partition: TopicPartition, start: int) -> None:
        self.cluster.trim(partition, start)

    async def append_undecodable(self, partition: TopicPartition) -> None:
        offset = self.cluster.produce(partition.topic, b"k", b"v", partition=partition.partition)
        self.cluster.spoil(partition, offset)

    def freeze(self) -> None:
        self._sockets.is_frozen = True

    def thaw(self) -> None:
        self._sockets.thaw()

    async def kill(self) -> None:
        self.cluster.is_down = True

    async def restart(self) -> None:
        self.cluster.is_down = False

    async def crash(self, member: Member) -> None:
        assert isinstance(member.port, FakeConsumer)
        member.port.crash()
        await asyncio.sleep(0)

    def stand_still(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.jump(seconds)
        for group in self.cluster.groups.values():  # the brokers did not stand still
            for member in list(group.members.values()):
                if member.until <= loop.time():
                    group.expire(member.id)

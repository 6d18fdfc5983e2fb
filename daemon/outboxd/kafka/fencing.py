"""Takes the next epoch of a transactional id, so that every older producer of the id is refused by the brokers.

An empty transaction writes markers with the new epoch into partitions that the new producer has not written to yet; the
producer itself then sends plain idempotent batches. Measured on Apache Kafka 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.client import ConnectionGroup, CoordinationType
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from outboxd.errors import ProducerFenced
from outboxd.kafka.bounded import call
from outboxd.records import TopicPartition

__all__ = ["Epoch", "take_epoch", "take_producer_id"]

_TRANSACTION_TIMEOUT_MS: Final = 60_000
_PAUSE: Final = 0.02
_MOVED: Final = (kafka.NotCoordinatorForGroupError, kafka.GroupCoordinatorNotAvailableError)
_WAIT: Final = (kafka.GroupLoadInProgressError, kafka.ConcurrentTransactions, kafka.RequestTimedOutError)
_REFUSED: Final = (
    kafka.UnknownTopicOrPartitionError,
    kafka.InvalidTopicError,
    kafka.TopicAuthorizationFailedError,
)
_OVERTAKEN: Final = (kafka.InvalidProducerEpoch, kafka.InvalidProducerIdMapping)


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """A producer id and epoch, for one producer object; ``refused`` partitions are not fenced."""

    producer_id: int
    epoch: int
    refused: frozenset[TopicPartition] = frozenset()


async def take_epoch(client: Any, transactional_id: str, fence: Collection[TopicPartition], *, seconds: float) -> Epoch:
    """The id's next epoch, with older producers fenced on ``fence`` less what the coordinator refuses.

    Raises BrokerUnreachable when that takes longer than ``seconds``, BrokerDenied without the ACL on the id, and
    ProducerFenced when another producer takes a newer epoch meanwhile.
    """
    coordinator = _Coordinator(client, transactional_id)
    doing = f"take the next epoch of {transactional_id}"
    return await call(coordinator.take_epoch(fence), seconds=seconds, doing=doing)


async def take_producer_id(client: Any, *, seconds: float) -> Epoch:
    """A producer id that nobody else has, for a producer without a transactional id."""

    async def ask() -> Epoch:
        while True:
            try:
                answer = await client.send(
                    client.get_random_node(), InitProducerIdRequest(None, _TRANSACTION_TIMEOUT_MS)
                )
                error = kafka.for_code(answer.error_code)
                if error is kafka.NoError:
                    return Epoch(producer_id=answer.producer_id, epoch=answer.producer_epoch)
                raise error
            except kafka.KafkaError as error:
                if not (error.retriable or isinstance(error, _WAIT)):
                    raise
            await client.force_metadata_update()
            await asyncio.sleep(_PAUSE)

    return await call(ask(), seconds=seconds, doing="get a producer id")


class _Coordinator:
    """Requests to the coordinator of one transactional id, wherever it moves."""

    def __init__(self, client: Any, transactional_id: str) -> None:
        self._client = client
        self._id = transactional_id
        self._node: int | None = None

    async def take_epoch(self, fence: Collection[TopicPartition]) -> Epoch:
        epoch = await self._next_epoch()
        if not fence:
            return epoch
        accepted, refused = await self._add_partitions(epoch, fence)
        if accepted:
            await self._commit(epoch)
            # Waits for the markers: only when they are written everywhere may the tail be read.
            epoch = await self._next_epoch()
        return Epoch(producer_id=epoch.producer_id, epoch=epoch.epoch, refused=frozenset(refused))

    async def _next_epoch(self) -> Epoch:
        while True:
            answer = await self._request(InitProducerIdRequest(self._id, _TRANSACTION_TIMEOUT_MS))
            if await self._succeeded(kafka.for_code(answer.error_code)):
                return Epoch(producer_id=answer.producer_id, epoch=answer.producer_epoch)

    async def _add_partitions(
        self, epoch: Epoch, fence: Collection[TopicPartition]
    ) -> tuple[set[TopicPartition], set[TopicPartition]]:
        """Those in the transaction and those refused. One refusal leaves all others out, so they are asked for again."""
        wanted = set(fence)
        refused: set[TopicPartition] = set()
        while wanted:
            topics: dict[str, list[int]] = {}
            for topic, partition in sorted(wanted):
                topics.setdefault(topic, []).append(partition)
            answer = await self._request(
                AddPartitionsToTxnRequest(self._id, epoch.producer_id, epoch.epoch, list(topics.items()))
            )
            errors = {
                TopicPartition(topic, partition): kafka.for_code(code)
                for topic, partitions in answer.errors
                for partition, code in partitions
            }
            denied = {partition for partition, error in errors.items() if error in _REFUSED}
            if denied:
                refused |= denied
                wanted -= denied
                continue
            others = set(errors.values()) - {kafka.NoError, kafka.OperationNotAttempted}
            if not others and kafka.OperationNotAttempted not in errors.values():
                break
            await self._succeeded(others.pop() if others else kafka.ConcurrentTransactions)
        return wanted, refused

    async def _commit(self, epoch: Epoch) -> None:
        while True:
            answer = await self._request(EndTxnRequest(self._id, epoch.producer_id, epoch.epoch, True))
            if await self._succeeded(kafka.for_code(answer.error_code)):
                return

    async def _succeeded(self, error: type[kafka.BrokerResponseError]) -> bool:
        """True for no error; False, after a pause, for one that passes by itself; raises the rest."""
        if error is kafka.NoError:
            return True
        if error in _OVERTAKEN:
            raise ProducerFenced(
                f"another producer took a newer epoch of {self._id}", suggestion="The other owner goes on; give up."
            )
        if error in _MOVED:
            self._node = None
        elif error not in _WAIT:
            raise error(self._id)
        await asyncio.sleep(_PAUSE)
        return False

    async def _request(self, request: object) -> Any:
        while True:
            try:
                if self._node is None:
                    self._node = await self._client.coordinator_lookup(CoordinationType.TRANSACTION, self._id)
                return await self._client.send(self._node, request, group=ConnectionGroup.COORDINATION)
            except kafka.KafkaError as error:
                if not error.retriable:
                    raise
                self._node = None
            await self._client.force_metadata_update()
            await asyncio.sleep(_PAUSE)

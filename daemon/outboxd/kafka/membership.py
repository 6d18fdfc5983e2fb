"""What a rebalance means for one member: which partitions are ours, under which epoch, and which have a position."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from aiokafka.abc import ConsumerRebalanceListener
from aiokafka.structs import TopicPartition as KafkaPartition

from outboxd.ports import AssignmentListener
from outboxd.records import TopicPartition

__all__ = ["Membership"]

_log: Final = logging.getLogger(__name__)


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka is not typed
    """Follows the group's rebalances and tells the listener, one call after the other.

    The client's own `assignment()` keeps partitions that a lost membership has given away, so it is never asked.
    """

    def __init__(self, listener: AssignmentListener) -> None:
        self._listener = listener
        self.epoch = 0
        """Grows with each revocation and each assignment: what was polled under another epoch is not ours to give out."""
        self.owned: frozenset[TopicPartition] = frozenset()
        self.sought: set[TopicPartition] = set()
        """Owned partitions that were given a position in this assignment."""

    async def on_partitions_revoked(self, revoked: Iterable[KafkaPartition]) -> None:
        """Called before the group is joined again; commits are possible until this returns."""
        partitions = self._ours(revoked)
        self.epoch += 1
        try:
            await self._tell(self._listener.revoked, partitions)
        finally:
            self.owned = frozenset()
            self.sought.clear()

    async def on_partitions_assigned(self, assigned: Iterable[KafkaPartition]) -> None:
        """Called once the group has settled."""
        partitions = self._ours(assigned)
        self.epoch += 1
        self.owned = frozenset(partitions)
        self.sought.clear()
        await self._tell(self._listener.assigned, partitions)

    @staticmethod
    def _ours(partitions: Iterable[KafkaPartition]) -> list[TopicPartition]:
        return sorted(TopicPartition(partition.topic, partition.partition) for partition in partitions)

    async def _tell(
        self, callback: Callable[[Collection[TopicPartition]], Awaitable[None]], partitions: Collection[TopicPartition]
    ) -> None:
        """The client logs and forgets what a listener raises; the listener's owner is to see to its own errors."""
        try:
            await callback(partitions)
        except Exception:  # noqa: BLE001 - whatever it is, the group goes on
            _log.exception("assignment_listener_failed")

"""The transaction coordinator: the producer id and epoch of each transactional id, and the transaction that it has open."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from outboxd.errors import BrokerError, ProducerFenced
from outboxd.records import TopicPartition

__all__ = ["TransactionCoordinator"]

_LAST_EPOCH: Final = 32_766


@dataclass(slots=True)
class _TransactionalId:
    producer_id: int
    epoch: int = -1
    open: list[TopicPartition] = field(default_factory=list)
    """Partitions of its open transaction."""


class TransactionCoordinator:
    """``mark(partition, producer id, epoch)`` writes the marker of an ended transaction."""

    def __init__(self, mark: Callable[[TopicPartition, int, int], None]) -> None:
        self._mark = mark
        self._ids: dict[str, _TransactionalId] = {}
        self._producer_ids = 0

    def init_producer_id(self, transactional_id: str | None) -> tuple[int, int]:
        """The next epoch of the id, whose open transaction is ended; without an id a producer id of its own."""
        if transactional_id is None:
            return self._new_producer_id(), 0
        known = self._ids.get(transactional_id)
        if known is None:
            known = self._ids[transactional_id] = _TransactionalId(self._new_producer_id())
        if known.open:
            self._next_epoch(known)
            self._end(known)
        self._next_epoch(known)
        return known.producer_id, known.epoch

    def add_partitions(
        self,
        transactional_id: str,
        epoch: tuple[int, int],
        partitions: Collection[TopicPartition],
        is_refused: Callable[[TopicPartition], bool],
    ) -> frozenset[TopicPartition]:
        """Take partitions into the transaction; when some are refused none is taken. Raises ProducerFenced."""
        known = self._current(transactional_id, epoch)
        refused = frozenset(partition for partition in partitions if is_refused(partition))
        if not refused:
            known.open += [partition for partition in sorted(partitions) if partition not in known.open]
        return refused

    def end_transaction(self, transactional_id: str, epoch: tuple[int, int]) -> None:
        """Write the markers. Raises ProducerFenced."""
        self._end(self._current(transactional_id, epoch))

    def expire(self, transactional_id: str) -> None:
        """Forget the id, as after its expiration time: its next producer gets another producer id and fences nobody."""
        self._ids.pop(transactional_id, None)

    def _current(self, transactional_id: str, epoch: tuple[int, int]) -> _TransactionalId:
        known = self._ids.get(transactional_id)
        if known is None:
            raise BrokerError(f"{transactional_id} is not known")
        if (known.producer_id, known.epoch) != epoch:
            raise ProducerFenced(f"another producer took a newer epoch of {transactional_id}")
        return known

    def _end(self, known: _TransactionalId) -> None:
        ended, known.open = known.open, []
        for partition in ended:
            self._mark(partition, known.producer_id, known.epoch)

    def _next_epoch(self, known: _TransactionalId) -> None:
        if known.epoch == _LAST_EPOCH:
            known.producer_id, known.epoch = self._new_producer_id(), 0
        else:
            known.epoch += 1

    def _new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

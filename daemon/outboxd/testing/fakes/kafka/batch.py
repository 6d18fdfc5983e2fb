"""Batches as the client builds them: as many records as fit, counted in bytes on the wire (message format 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from outboxd.errors import RecordRejected
from outboxd.ports import OutboundRecord

__all__ = ["FakeBatch", "batch_size", "build_batch"]

_BATCH_HEADER: Final = 61
_BATCH_BYTES: Final = 1_000_000


@dataclass(slots=True)
class FakeBatch:
    """A built batch, good for one send."""

    records: Sequence[OutboundRecord] = field(default=())
    is_used: bool = False

    @property
    def count(self) -> int:
        """Records in it."""
        return len(self.records)


def build_batch(records: Sequence[OutboundRecord], *, now: int, most: int) -> FakeBatch:
    """As many of the first records as fit, at least one and at most ``most``; ``now`` stamps those without a time.

    Raises RecordRejected when the first record cannot be written at all (a header name that is no text for Kafka).
    """
    taken: list[OutboundRecord] = []
    size = _BATCH_HEADER
    for record in records[:most]:
        try:
            size += record_size(record, len(taken))
        except UnicodeEncodeError as error:
            if taken:
                break
            raise RecordRejected(f"the record cannot be encoded: {error}") from error
        if taken and size > _BATCH_BYTES:
            break
        taken.append(record if record.timestamp is not None else replace(record, timestamp=now))
    return FakeBatch(tuple(taken))


def batch_size(records: Sequence[OutboundRecord]) -> int:
    """Bytes of a batch without compression."""
    return _BATCH_HEADER + sum(record_size(record, index) for index, record in enumerate(records))


def record_size(record: OutboundRecord, index: int) -> int:
    """Bytes of the record as the ``index``-th of its batch, up to those by which its timestamp differs from the first."""
    size = 2 + _varint(index) + _field(record.key) + _field(record.value) + _varint(len(record.headers))
    for name, value in record.headers:
        encoded = name.encode()
        size += _varint(len(encoded)) + len(encoded) + _field(value)
    return size + _varint(size)


def _field(data: bytes | None) -> int:
    return 1 if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """Bytes of a non-negative number in zigzag encoding."""
    return max(1, ((number << 1).bit_length() + 6) // 7)

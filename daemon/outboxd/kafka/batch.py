"""Record batches: built from records in one go, sent once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from aiokafka.producer.message_accumulator import BatchBuilder

from outboxd.errors import RecordRejected
from outboxd.ports import OutboundRecord

__all__ = ["KafkaBatch", "build_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaBatch:
    """A built batch. The library's builder is single use: a batch that failed is built again from its records."""

    builder: BatchBuilder
    count: int


def build_batch(producer: Any, records: Sequence[OutboundRecord]) -> KafkaBatch:
    """As many of the first records as fit into the producer's batch size, at least one, compressed when it is sent.

    Raises RecordRejected when the first record cannot be written at all (a header name that is no text for Kafka); a
    later one that cannot ends the batch before it.
    """
    builder = producer.create_batch()
    append = builder.append
    count = 0
    for record in records:
        try:
            added = append(timestamp=record.timestamp, key=record.key, value=record.value, headers=list(record.headers))
        except (TypeError, ValueError, OverflowError) as error:
            if count:
                break
            raise RecordRejected(f"the record cannot be encoded: {error}") from error
        if added is None:
            break
        count += 1
    return KafkaBatch(builder=builder, count=count)

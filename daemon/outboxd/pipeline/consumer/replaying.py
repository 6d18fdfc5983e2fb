"""Runs a claimed letter again in its key's own lane, behind what is in hand of that key; never touches offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from outboxd.errors import AssignmentLost, RecordError
from outboxd.pipeline.consumer.breaker import Breaker
from outboxd.pipeline.consumer.lanes import Lanes
from outboxd.pipeline.consumer.partition import AssignedPartition, Feeding, InHand, Replaying
from outboxd.pipeline.letters.replay import ReplayPostponed
from outboxd.ports import ReplayItem
from outboxd.records import Letter, RawRecord, Stage, TopicPartition

__all__ = ["record_of", "replay_in_place"]


def record_of(letter: Letter) -> RawRecord:
    """The record that the letter was made of, byte for byte, at its original coordinates (invariant 7)."""
    return RawRecord(
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        timestamp=letter.timestamp,
        timestamp_type=letter.timestamp_type,
        key=letter.key,
        value=letter.value,
        headers=letter.headers,
    )


async def replay_in_place(
    item: ReplayItem,
    *,
    partitions: Mapping[TopicPartition, AssignedPartition],
    lanes: Lanes,
    breaker: Breaker[InHand],
    now: float,
) -> None:
    """Return once the handler succeeded with the letter's record.

    While the dependency is out it may be the probe: with nothing else in hand there is no other.
    Raises the handler's own error when it failed again (no retries); AssignmentLost or ReplayPostponed when the run
    does not count; RecordError for a letter that is no record.
    """
    letter = item.letter
    if letter.stage is Stage.FETCH:
        raise RecordError("a letter of stage fetch holds a raw batch, which no handler can be given")
    tp = TopicPartition(letter.topic, letter.partition)
    partition = partitions.get(tp)
    if partition is None or partition.feeding is not Feeding.ALL or partition.progress is None:
        raise AssignmentLost(f"{tp} is not ours")
    if breaker.is_open and not breaker.may_probe(now):
        raise ReplayPostponed("the dependency is out")
    raw = record_of(letter)
    record = InHand(raw, partition, lanes.lane_of(raw), 0)
    replaying = Replaying(asyncio.get_running_loop().create_future())
    record.replaying = replaying
    partition.replays.add(replaying)
    try:
        lanes.add([record])
        await replaying.outcome
    finally:
        partition.replays.discard(replaying)

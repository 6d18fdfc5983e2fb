"""The rows that one shard holds in memory, from their reading to their mark, and the keys that wait.

A row leaves memory with its mark, or is dropped to be read again; every drop makes pages that are being read unusable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from outboxd.errors import OutboxdError
from outboxd.pipeline.relay.actions import ActionRunner
from outboxd.pipeline.relay.blocks import Admission, Blocks, KeyId, key_id
from outboxd.pipeline.relay.dependencies import told
from outboxd.pipeline.relay.lane import Lane
from outboxd.pipeline.relay.marking import Marker
from outboxd.pipeline.relay.rows import TopicNotListed, record_size, row_fault
from outboxd.pipeline.relay.sent import SentBatch
from outboxd.pipeline.relay.topics import Topic
from outboxd.ports import Statement
from outboxd.records import OutboxRow, SentPosition, TopicPartition
from outboxd.telemetry.relay import KeyBlocked, KeyReleased

if TYPE_CHECKING:
    from outboxd.pipeline.relay.shard import Shard

__all__ = ["Holding"]

_BLOCKS_PER_TOPIC: Final = 1_000
"""Blocked keys of one topic in one shard; with more the topic as a whole is at fault, and is paused."""
_SPREAD_RUN: Final = 7
"""Rows without a key go to one partition in runs of 2 ** 7, so that they make batches."""


class Holding:
    """What one shard has in hand: rows in lanes, rows at their actions or their mark, and blocked keys."""

    def __init__(self, shard: Shard, marker: Marker) -> None:
        self.in_flight: set[int] = set()
        """Rows that no fetch may give: on their way, acknowledged but not marked, or having their actions run."""
        self.generation = 0
        """Counts the times that rows left memory without an outcome: a fetch from before that must not be used."""
        self._keys: dict[int, KeyId] = {}
        """The key of each row in hand whose order goes on after the publish: that has one, and actions."""
        self._in_hand: dict[KeyId, int] = {}
        """How many rows each of these keys has in hand."""
        self.blocks = Blocks(initial=1.0, maximum=60.0, is_in_hand=self._in_hand.__contains__)
        self.actions = ActionRunner(shard)
        self.changed = asyncio.Event()
        """Set when nothing is in flight any more, or a lane has ended."""
        self._shard = shard
        self._context = shard.context
        self._marker = marker
        self._bytes = 0
        self._is_closed = False
        self._lanes: dict[TopicPartition, Lane] = {}

    async def lanes_ended(self) -> None:
        """Wait until no batch is on its way."""
        while any(lane.is_running for lane in self._lanes.values()):
            self.changed.clear()
            await self.changed.wait()

    async def emptied(self) -> None:
        """Wait until everything in hand is marked or back in the table; what need not be finished goes back."""
        await self.lanes_ended()
        self.drop(self.actions.withdraw_waiting())
        while self.in_flight and not self._shard.is_lost:
            self.changed.clear()
            await self.changed.wait()

    def close(self) -> None:
        """The shard is given up: what it held counts no more, also when the answer to a mark still comes."""
        self._is_closed = True
        self._context.window.release(len(self.in_flight), self._bytes)

    def topic_paused(self, topic: str) -> None:
        """Leave the topic's rows in the table."""
        self.blocks.end_topic(topic)
        for partition, lane in self._lanes.items():
            if partition.topic == topic:
                self.drop(lane.withdraw())

    def is_busy(self, topic: str) -> bool:
        """Whether a batch for the topic is on its way."""
        return any(lane.is_sending for partition, lane in self._lanes.items() if partition.topic == topic)

    # -- rows come in

    def admit(self, row: OutboxRow, now: int) -> Lane | bool:
        """Take a row that was read; the lane that has it now, or whether it was taken at all. ``now`` in milliseconds."""
        if row.row_id in self.in_flight:
            return False
        if self.blocks and self.blocks.admit(row) is Admission.HELD:
            return False
        if row.sent is not None:
            self._take_in_row(row, record_size(row))
            self._deliver(row, row.sent)
            return True
        topics = self._context.topics
        if not topics.is_listed(row.topic):
            self.block(row, TopicNotListed(f"the topic {row.topic} is not listed in publish.topics"))
            return False
        topic = topics.ready(row.topic)
        if topic is None:
            self.blocks.dropped(row)
            return False
        size = record_size(row)
        fault = row_fault(row, topic.info, now, size=size, is_compressed=self._context.compression is not None)
        if fault is not None:
            self.block(row, fault)
            return False
        self._take_in_row(row, size)
        lane = self._lane(row, topic)
        lane.queue.append(row)
        return lane

    def _lane(self, row: OutboxRow, topic: Topic) -> Lane:
        key = row.key
        index = None if key is None else topic.partitions.get(key)
        if index is None:
            assert self._shard.producer is not None
            index = self._shard.producer.partition_for(topic.info, key, row.row_id >> _SPREAD_RUN)
            if key is not None:
                topic.remember(key, index)
        partition = TopicPartition(row.topic, index)
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(self._shard, partition, topic)
        elif lane.topic is not topic:
            lane.adapt(topic)
        return lane

    def found(self, partition: TopicPartition, start: int, end: int, rows: Sequence[OutboxRow]) -> None:
        """A recovery read the partition from ``start`` to ``end`` and found these rows there: they are to be marked."""
        if not rows:
            self._shard.trails.recovered(partition, end, None)
            return
        batch = SentBatch(partition, start, [row.row_id for row in rows], sum(map(record_size, rows)))
        self._shard.trails.recovered(partition, end, batch)
        self._take_in(batch.row_ids, batch.size)
        self._marker.add(self._shard, batch.row_ids, batch.size, batch)

    def delivered(self, batch: SentBatch, rows: Sequence[OutboxRow], positions: Sequence[SentPosition]) -> None:
        """Rows that stand in the log go on to their actions, or straight to the mark."""
        if self._context.plans.steps(batch.partition.topic):
            self.actions.submit(batch, list(zip(rows, positions, strict=True)))
        else:
            if self.blocks:
                for row in rows:
                    self._passed(row)
            self._marker.add(self._shard, batch.row_ids, batch.size, batch)

    def _deliver(self, row: OutboxRow, sent: SentPosition) -> None:
        """A row whose stage was stored before."""
        if self._context.plans.steps(row.topic):
            self.actions.resume(row, sent)
        else:
            self._passed(row)
            self._marker.add(self._shard, [row.row_id], record_size(row))

    def acted(self, row: OutboxRow, statements: Sequence[Statement]) -> asyncio.Event | None:
        """The row's actions succeeded, but for statements that commit with its mark: the event says when they did."""
        if self.blocks and not self.blocks.may_pass(row):
            self.drop([row])  # an earlier row of its key failed meanwhile: its actions come first
            return None
        if statements:
            return self._marker.add_statements(self._shard, row, statements)
        self._passed(row)
        self._marker.add(self._shard, [row.row_id], record_size(row))
        return None

    def statements_committed(self, row: OutboxRow) -> None:
        """The row's statements and its mark are in the table."""
        self._passed(row)
        self.settled([row.row_id], record_size(row))

    def settled(self, row_ids: Sequence[int], size: int) -> None:
        """The rows' mark is in the table: they may leave memory, nothing will show them again."""
        self._let_go(row_ids, size)

    def _take_in_row(self, row: OutboxRow, size: int) -> None:
        self._take_in((row.row_id,), size)
        if row.key is not None and self._context.plans.steps(row.topic):
            key = self._keys[row.row_id] = (row.topic, row.key)
            self._in_hand[key] = self._in_hand.get(key, 0) + 1

    def _take_in(self, row_ids: Sequence[int], size: int) -> None:
        self.in_flight.update(row_ids)
        self._bytes += size
        self._context.window.add(len(row_ids), size)

    def _let_go(self, row_ids: Sequence[int], size: int) -> None:
        if self._is_closed:
            return
        self.in_flight.difference_update(row_ids)
        self._bytes -= size
        self._context.window.release(len(row_ids), size)
        if self._keys:
            for row_id in row_ids:
                self._left_hand(row_id)
        if not self.in_flight:
            self.changed.set()

    def _left_hand(self, row_id: int) -> None:
        key = self._keys.pop(row_id, None)
        if key is None:
            return
        self._in_hand[key] -= 1
        if not self._in_hand[key]:
            del self._in_hand[key]
            self.blocks.left_hand(key)

    # -- rows go back, keys wait

    def drop(self, rows: Sequence[OutboxRow]) -> None:
        """Forget rows without an outcome; they are read again."""
        if not rows:
            return
        self.generation += 1
        self._let_go([row.row_id for row in rows], sum(map(record_size, rows)))
        if self.blocks:
            for row in rows:
                self.blocks.dropped(row)

    def block(self, row: OutboxRow, error: BaseException) -> None:
        """The row failed for what it is: it and the later rows of its key wait, everything else flows."""
        context = self._context
        message = told(error)
        now = context.clock.monotonic()
        block = self.blocks.failed(row, message, now)
        self._withdraw_behind(row)
        context.emit(
            KeyBlocked(
                pipeline=context.pipeline,
                topic=row.topic,
                row_id=row.row_id,
                error=message,
                attempts=block.attempts,
                retry_in=block.due_at - now,
            )
        )
        if self.blocks.count(row.topic) > _BLOCKS_PER_TOPIC:
            context.topics.pause(
                row.topic,
                OutboxdError(f"more than {_BLOCKS_PER_TOPIC} keys of {row.topic} are blocked; the last: {message}"),
            )

    def hold_back(self, row: OutboxRow, error: BaseException) -> None:
        """Whether the row is done is unknown: it and the later rows of its key are read again."""
        self.blocks.held_back(row, told(error), self._context.clock.monotonic())
        self._withdraw_behind(row)

    def _withdraw_behind(self, row: OutboxRow) -> None:
        key: KeyId = key_id(row)
        withdrawn = self.actions.withdraw(key, row.row_id)
        for partition, lane in self._lanes.items():
            if partition.topic == row.topic:
                withdrawn.extend(lane.withdraw(key, row.row_id))
        if row.row_id in self.in_flight:
            withdrawn.append(row)
        self.drop(withdrawn)

    def _passed(self, row: OutboxRow) -> None:
        """The row got through: if its key was blocked at it, the key is free."""
        if self.blocks and self.blocks.passed(row):
            self._context.emit(KeyReleased(pipeline=self._context.pipeline, topic=row.topic, row_id=row.row_id))

    def drop_queued(self) -> None:
        """Leave everything that is not on its way yet in the table."""
        for lane in self._lanes.values():
            self.drop(lane.withdraw())

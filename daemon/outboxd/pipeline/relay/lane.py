"""The queue of one shard's rows for one partition: one atomic batch on its way, the next when that one is resolved.

A key has one shard and one partition, so the order of its rows is the order of this queue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

from outboxd.errors import (
    BrokerDenied,
    BrokerError,
    BrokerUnreachable,
    DatabaseError,
    LeaseLost,
    OutboxdError,
    ProducerFenced,
    RecordRejected,
    SendOutcomeUnknown,
    TopicError,
)
from outboxd.pipeline.relay.blocks import KeyId, key_id
from outboxd.pipeline.relay.rows import BATCH_OVERHEAD, record_size
from outboxd.pipeline.relay.topics import Topic
from outboxd.records import OutboxRow, TopicPartition

if TYPE_CHECKING:
    from outboxd.pipeline.relay.shard import Shard

__all__ = ["Consequence", "Lane", "consequence"]

_BATCH_ROWS: Final = 4_000
_BATCH_BYTES: Final = 1_000_000
_GRACE: Final = 5.0
"""Seconds past the send deadline after which a producer that still gave no answer is given up."""


class Consequence(Enum):
    """What a failed batch means."""

    PAUSE_TOPIC = "pause_topic"
    """Nothing was written; the topic waits, others go on."""
    FIND_CULPRIT = "find_culprit"
    """Nothing was written; one of its rows is refused for what it is."""
    OUTAGE = "outage"
    """Whether it was written is unknown, or the broker is out: everybody backs off, then the log is read."""
    REBUILD = "rebuild"
    """The producer is of no use any more: a new one, then the log is read."""
    LOST = "lost"
    """The shard is somebody else's."""
    HOLD = "hold"
    """The database did not take the note: nothing was sent."""


def consequence(error: OutboxdError) -> Consequence:
    """What follows from an error of a batch; pure."""
    match error:
        case TopicError():
            return Consequence.PAUSE_TOPIC
        case RecordRejected():
            return Consequence.FIND_CULPRIT
        case BrokerUnreachable() | SendOutcomeUnknown() | BrokerDenied():
            return Consequence.OUTAGE
        case LeaseLost():
            return Consequence.LOST
        case DatabaseError():
            return Consequence.HOLD
        case _:
            return Consequence.REBUILD


class _Suspects:
    """Rows of a refused batch, among which the culprit is found by halving."""

    __slots__ = ("last", "limit", "row_ids")

    def __init__(self, row_ids: Sequence[int]) -> None:
        self.row_ids = set(row_ids)
        self.last = max(row_ids)
        self.limit = max(1, len(row_ids) // 2)


class Lane:
    """Rows of one shard for one partition. Its task lives while there is something to send."""

    def __init__(self, shard: Shard, partition: TopicPartition, topic: Topic) -> None:
        self.partition = partition
        self.queue: deque[OutboxRow] = deque()
        self.is_running = False
        self.is_sending = False
        self._shard = shard
        self._context = shard.context
        self._suspects: _Suspects | None = None
        self.adapt(topic)

    def adapt(self, topic: Topic) -> None:
        """Keep to the topic's present limits."""
        self.topic = topic
        limit = topic.info.max_message_bytes
        self._max_bytes = _BATCH_BYTES if limit is None else min(_BATCH_BYTES, limit - BATCH_OVERHEAD)

    def start(self) -> None:
        """Send what is queued, unless that is being done."""
        if self.queue and not self.is_running:
            self.is_running = True
            self._shard.spawn(self._run(), f"lane {self.partition}")

    def withdraw(self, key: KeyId | None = None, row_id: int = -1) -> list[OutboxRow]:
        """Take out what is queued: everything, or the rows of a key behind this row."""
        if key is None:
            withdrawn = list(self.queue)
            self.queue.clear()
            return withdrawn
        withdrawn = [row for row in self.queue if row.row_id > row_id and key_id(row) == key]
        if withdrawn:
            taken = {row.row_id for row in withdrawn}
            self.queue = deque(row for row in self.queue if row.row_id not in taken)
        return withdrawn

    async def _run(self) -> None:
        try:
            while self.queue and self._shard.is_open:
                await self._context.broker.wait()
                if not self.queue or not self._shard.is_open:
                    break
                rows, size = self._take()
                self.is_sending = True
                try:
                    await self._publish(rows, size)
                finally:
                    self.is_sending = False
        finally:
            self.is_running = False
            if not self._shard.is_open:
                self._shard.holding.drop(self.withdraw())
            self._shard.lane_ended()

    def _take(self) -> tuple[list[OutboxRow], int]:
        """The next batch: the first rows that fit; the attempt of a blocked key goes alone."""
        queue, blocks = self.queue, self._shard.holding.blocks
        limit = self._batch_limit()
        rows: list[OutboxRow] = []
        size = 0
        while queue and len(rows) < limit:
            row = queue[0]
            row_size = record_size(row)
            is_alone = bool(blocks) and blocks.is_probe(row)
            if rows and (is_alone or size + row_size > self._max_bytes):
                break
            rows.append(queue.popleft())
            size += row_size
            if is_alone:
                break
        return rows, size

    def _batch_limit(self) -> int:
        suspects = self._suspects
        if suspects is not None and (not suspects.row_ids or self.queue[0].row_id > suspects.last):
            suspects = self._suspects = None
        return _BATCH_ROWS if suspects is None else suspects.limit

    async def _publish(self, rows: list[OutboxRow], size: int) -> None:
        shard, context = self._shard, self._context
        producer = shard.producer
        assert producer is not None
        try:
            batch = producer.build([shard.make_record(row) for row in rows])
        except RecordRejected as error:
            self.queue.extendleft(reversed(rows[1:]))
            shard.holding.block(rows[0], error)
            return
        if batch.count < len(rows):
            self.queue.extendleft(reversed(rows[batch.count :]))
            del rows[batch.count :]
            size = sum(map(record_size, rows))
        began = context.clock.monotonic()
        try:
            await shard.note(self.partition)
            # The last look before the bytes leave: a process that was stopped and goes on sees here that time has
            # passed. What happens between this line and the broker is what the fence is for.
            if not shard.may_send(self.partition, producer):
                shard.holding.drop(rows)
                return
            with context.broker.watched():
                async with asyncio.timeout(context.send_deadline.total_seconds() + _GRACE):
                    base = await producer.send(self.partition, batch)
        except TimeoutError:
            self._failed(rows, SendOutcomeUnknown(f"the producer gave no answer about {self.partition}"))
        except (BrokerError, DatabaseError, LeaseLost) as error:
            self._failed(rows, error)
        else:
            if self._suspects is not None:
                self._suspects.row_ids.difference_update(row.row_id for row in rows)
            shard.acknowledged(
                self.topic, self.partition, base, rows, size=size, seconds=context.clock.monotonic() - began
            )

    def _failed(self, rows: list[OutboxRow], error: OutboxdError) -> None:
        shard = self._shard
        what = consequence(error)
        shard.batch_failed(self.partition, error, len(rows))
        match what:
            case Consequence.PAUSE_TOPIC:
                shard.holding.drop(rows)
                self._context.topics.pause(self.partition.topic, error)
            case Consequence.FIND_CULPRIT:
                if len(rows) == 1:
                    shard.holding.block(rows[0], error)
                else:
                    self._suspects = _Suspects([row.row_id for row in rows])
                    shard.holding.drop(rows)
                shard.fail()
            case Consequence.OUTAGE:
                shard.holding.drop(rows)
                if not shard.is_lost:  # then it was we who gave the producer up: that says nothing of the broker
                    self._context.broker.failed(error)
                shard.fail()
            case Consequence.REBUILD:
                shard.holding.drop(rows)
                shard.fail(is_fenced=isinstance(error, ProducerFenced))
            case Consequence.HOLD:
                shard.holding.drop(rows)
                self._context.database.failed(error)
                shard.fail()
            case Consequence.LOST:
                shard.lose()

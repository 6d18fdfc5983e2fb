"""One owned shard: its lease, its producer, its lanes, and the rows that are on their way.

Its life: open (recovery when the past is uncertain), send until something goes wrong, let every batch on its way end,
give the producer up, open again; at the end drain and release. On any failure everything that is queued and not yet
sent is dropped from memory and read again, so that no row can overtake one that failed (invariant 3).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Final

from outboxd.errors import BrokerError, DatabaseError, LeaseLost, OutboxdError, TopicDenied
from outboxd.pipeline.relay.dependencies import growing_wait
from outboxd.pipeline.relay.holding import Holding
from outboxd.pipeline.relay.lease import HeldLease
from outboxd.pipeline.relay.marking import Marker
from outboxd.pipeline.relay.recovery import abandon, recover
from outboxd.pipeline.relay.rows import record_maker
from outboxd.pipeline.relay.sent import SentBatch, Trails
from outboxd.pipeline.relay.topics import Topic
from outboxd.ports import Lease, LeaseToken, RelayProducer
from outboxd.records import OutboxRow, SentPosition, TopicPartition
from outboxd.telemetry.relay import BatchFailed, BatchPublished, ShardLost

if TYPE_CHECKING:
    from outboxd.pipeline.relay.context import RelayContext

__all__ = ["Shard"]

_EPOCH_AGE: Final = 86_400.0
"""Seconds after which a producer is replaced: the broker forgets a transactional id that is silent for days."""


class Shard:
    """A shard from the taking of its lease to its loss or release."""

    def __init__(self, context: RelayContext, marker: Marker, number: int, lease: Lease, asked_at: float) -> None:
        self.context = context
        self.number = number
        self.trails = Trails(lease.notes, context.clock.monotonic())
        self.producer: RelayProducer | None = None
        self.make_record = record_maker(context.relay_id)
        self.is_uncertain = not lease.is_clean
        self.is_open = False
        self.is_draining = False
        self.is_lost = False
        self.was_open = False
        self._is_fenced = False
        self._unfenced: frozenset[TopicPartition] = frozenset()
        self._failures = 0
        self._trouble = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._group: asyncio.TaskGroup | None = None
        self.holding = Holding(self, marker)
        self._lease = HeldLease(
            token=lease.token,
            asked_at=asked_at,
            lease_time=context.lease_time,
            written=lease.notes,
            leases=context.leases,
            database=context.database,
            clock=context.clock,
            notes=self._notes,
            on_lost=self.lose,
            on_expired=self._expired,
        )

    @property
    def token(self) -> LeaseToken:
        """The right to act for this shard."""
        return self._lease.token

    @property
    def is_reading(self) -> bool:
        """Whether rows of this shard may be fetched."""
        return self.is_open and not self.is_draining

    # -- life

    async def run(self) -> None:
        """Own the shard until it is drained and released, or lost."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                self.spawn(self._lease.keep(), "lease")
                self.spawn(self.holding.actions.stage(), "stages")
                await self._live()
                for task in self._tasks:
                    task.cancel()
        finally:
            self.is_open = False
            if self.producer is not None:
                await abandon(self.producer)
            self.holding.close()
            if not self.is_lost and not self.is_uncertain and not self.holding.in_flight and not self.is_draining:
                await self._release(seconds=0.5)

    def spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        """Start a task that ends with the shard at the latest."""
        assert self._group is not None
        task = self._group.create_task(work, name=f"{self.context.pipeline}: shard {self.number}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> None:
        """Take nothing in, let what is on its way end, give the rest back to the table, then release."""
        if not self.is_draining:
            self.is_draining = True
            self.holding.drop_queued()
            self._trouble.set()

    async def _live(self) -> None:
        while not self.is_lost:
            if self.is_draining:
                await self._finish()
                return
            self._trouble.clear()
            if not await self._open():
                continue
            try:
                async with asyncio.timeout(_EPOCH_AGE):
                    await self._trouble.wait()
            except TimeoutError:
                self.fail()
            self.is_open = False
            if self.is_lost or self._is_fenced or not self._lease.is_live:
                await self._give_up_producer()  # nothing more may leave, not even what was handed over already
            await self.holding.lanes_ended()
            if not self.is_draining:
                await self._give_up_producer()

    async def _open(self) -> bool:
        """Get a producer and find out what the log holds; False when that has to be tried again."""
        context = self.context
        await self._pause_after_failures()
        if self._trouble.is_set():
            return False
        try:
            self.producer, self._unfenced = await recover(self)
            # Only now, so that a topic that is well again soon finds here what it has to have fenced.
            for topic in sorted({partition.topic for partition in self._unfenced}):
                context.topics.pause(topic, _refused(topic))
        except LeaseLost:
            self.lose()
            return False
        except BrokerError as error:
            context.broker.failed(error)  # an outage: everybody backs off, nobody is charged (invariant 5)
            self._failures += 1
            return False
        except DatabaseError as error:
            context.database.failed(error)
            return False
        if self._trouble.is_set():
            await self._give_up_producer()
            return False
        self.is_uncertain = bool(self._unfenced)
        self._is_fenced = False
        self.is_open = self.was_open = True
        context.window.wake.set()
        return True

    async def _pause_after_failures(self) -> None:
        """Wait for the servers, for the lease, and longer after each producer that came to nothing.

        Interrupted by `drain` and `lose`.
        """
        context = self.context

        async def servers_and_lease() -> None:
            await context.broker.wait()
            await context.database.wait()
            await self._lease.live()
            if self._failures:
                await context.clock.sleep(growing_wait(self._failures, initial=0.02, maximum=5.0))

        waiting = asyncio.ensure_future(servers_and_lease())
        trouble = asyncio.ensure_future(self._trouble.wait())
        try:
            await asyncio.wait({waiting, trouble}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            trouble.cancel()
            await asyncio.gather(waiting, trouble, return_exceptions=True)

    async def _finish(self) -> None:
        """Wait until everything in hand is marked or back in the table, then free the lease if the past is known."""
        await self.holding.emptied()
        if not self.is_lost and not self.is_uncertain:
            # Without a release the next owner waits the lease out, fences and reads the log: right, only slower.
            await self._release(seconds=self.context.lease_time.total_seconds())

    async def _release(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._lease.release()
        except (TimeoutError, DatabaseError) as error:
            self.context.database.failed(error if isinstance(error, DatabaseError) else DatabaseError("no answer"))

    async def _give_up_producer(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            await abandon(producer)

    # -- trouble

    def fail(self, *, is_fenced: bool = False) -> None:
        """Send nothing more with this producer; the log is read before the next one sends."""
        self._is_fenced = self._is_fenced or is_fenced
        self._failures += 1
        self.is_uncertain = True
        self.is_open = False
        self.holding.drop_queued()
        self._trouble.set()

    def lose(self) -> None:
        """Somebody else owns the shard: forget everything of it, mark nothing."""
        if self.is_lost:
            return
        self.is_lost = True
        self.context.emit(ShardLost(pipeline=self.context.pipeline, shard=self.number, epoch=self.token.epoch))
        self.fail()
        self.holding.actions.lost()
        self.holding.changed.set()

    def _expired(self) -> None:
        """The lease may be somebody else's by now, as far as can be told without the database."""
        if self.is_open:
            self.fail(is_fenced=True)

    def topic_resumed(self, topic: str) -> None:
        """Fence what could not be fenced while the topic was refused."""
        if any(partition.topic == topic for partition in self._unfenced):
            self.fail()

    # -- rows go out

    async def note(self, partition: TopicPartition) -> None:
        """See to it that the partition stands in the stored notes before anything is sent to it."""
        name = str(partition)
        now = self.context.clock.monotonic()
        if self.trails.touch(partition, now) and name in self._lease.written:
            return
        if partition not in self.trails:
            assert self.producer is not None
            async with asyncio.timeout(self.context.send_deadline.total_seconds()):
                end = await self.producer.end_offset(partition)
            self.trails.begin(partition, end, now)
        await self._lease.renew(unless_written=name)

    def may_send(self, partition: TopicPartition, producer: RelayProducer) -> bool:
        """Whether a batch may leave at this very moment."""
        if not self._lease.is_live:
            self._expired()
        return (
            self.is_open
            and not self.is_draining
            and self.producer is producer
            and partition not in self._unfenced
            and partition.topic not in self.context.topics.paused
        )

    def acknowledged(
        self,
        topic: Topic,
        partition: TopicPartition,
        base: int,
        rows: Sequence[OutboxRow],
        *,
        size: int,
        seconds: float,
    ) -> None:
        """The broker has the batch."""
        context = self.context
        batch = SentBatch(partition, base, [row.row_id for row in rows], size)
        self.trails.acknowledged(batch, len(rows), context.clock.monotonic())
        self._failures = 0
        context.broker.answered()
        context.topics.acknowledged(partition.topic)
        context.books.last_publish = context.clock.now()
        context.books.published += len(rows)
        context.emit(BatchPublished(pipeline=context.pipeline, topic=partition.topic, count=len(rows), seconds=seconds))
        if context.on_published is not None:
            context.on_published(context.pipeline, partition.topic, partition.partition, base, len(rows))
        positions: Sequence[SentPosition] = ()
        if topic.has_actions:
            positions = [
                SentPosition(topic=partition.topic, partition=partition.partition, offset=base + index)
                for index in range(len(rows))
            ]
        self.holding.delivered(batch, rows, positions)

    def batch_failed(self, partition: TopicPartition, error: OutboxdError, count: int) -> None:
        """Write down that a batch did not get through."""
        self.context.emit(
            BatchFailed(
                pipeline=self.context.pipeline, topic=partition.topic, count=count, reason=error.code, error=str(error)
            )
        )

    def lane_ended(self) -> None:
        """A lane has nothing more to do."""
        self.holding.changed.set()

    def _notes(self) -> dict[str, int | str]:
        self.trails.drop_idle(self.context.clock.monotonic())
        return self.trails.notes()


def _refused(topic: str) -> TopicDenied:
    return TopicDenied(
        f"the broker refuses to fence {topic}",
        topic=topic,
        suggestion="create it again if it was deleted, or give this user its Write ACL",
    )

"""What the group gives this replica and takes from it: positions when partitions come, a bounded drain when they go.

Both callbacks run inside the client's rebalance. They never raise (the client would swallow it), never wait for a poll
(it blocks until the rebalance is over) and hold no lock across one (B008). Pauses and retries live in the
`AssignedPartition`, so they end with it and nothing of an earlier assignment comes back (B014).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, Final

from outboxd.errors import AssignmentLost, BrokerError, PipelineStopped
from outboxd.pipeline.consumer.backoff import CONNECT_BACKOFF
from outboxd.pipeline.consumer.committing import Committer
from outboxd.pipeline.consumer.partition import AssignedPartition, Bounds, Feeding
from outboxd.pipeline.consumer.polling import Poller
from outboxd.pipeline.consumer.processing import Processing
from outboxd.pipeline.consumer.progress import Progress
from outboxd.pipeline.consumer.start_position import StartPositions
from outboxd.ports import Clock, ConsumerPort, Random
from outboxd.records import TopicPartition
from outboxd.telemetry.consumer import PartitionsAssigned, PartitionsRevoked
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Assignment"]

_CANCEL_GRACE: Final = 5.0
_COMMIT_DEADLINE: Final = 10.0
_REBALANCE_RESERVE: Final = 20.0
"""Kept of the rebalance's time for cancelling, the last commit and the broker's own part."""
_SHORTEST_DRAIN: Final = 0.5
_START_DEADLINE: Final = 30.0


def drain_seconds(rebalance_timeout: float) -> float:
    """How long a revoke waits for work in flight: 40 s of the default 60 s."""
    return max(_SHORTEST_DRAIN, rebalance_timeout - _REBALANCE_RESERVE)


class Assignment:
    """The listener of one member, and the owner of the map of its partitions.

    ``spawn`` starts a task that the session owns; ``fail`` ends the pipeline.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        port: ConsumerPort,
        partitions: dict[TopicPartition, AssignedPartition],
        bounds: Bounds,
        drain: float,
        starts: StartPositions,
        poller: Poller,
        committer: Committer,
        processing: Processing,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        spawn: Callable[[Coroutine[Any, Any, None], str], asyncio.Task[None]],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._pipeline = pipeline
        self._port = port
        self._bounds = bounds
        self._drain = drain
        self._starts = starts
        self._poller = poller
        self._committer = committer
        self._processing = processing
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._spawn = spawn
        self._fail = fail
        self.partitions = partitions
        self._polls: dict[TopicPartition, asyncio.Task[None]] = {}
        self.epoch = 0
        self.last_error: str | None = None
        self.is_closing = False

    # -- partitions come -------------------------------------------------------------------------------------------------

    async def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """These are ours from now on. Positions are found outside the rebalance, and polling begins after that."""
        if self.is_closing:
            return
        self.epoch += 1
        now = self._clock.monotonic()
        total = len(self.partitions.keys() | set(partitions))
        new = []
        for tp in partitions:
            before = self.partitions.get(tp)
            if before is not None:
                self._forget(before)
            partition = AssignedPartition(tp, epoch=self.epoch, bounds=self._bounds, shared_by=total, now=now)
            self.partitions[tp] = partition
            new.append(partition)
        self._telemetry.emit(PartitionsAssigned(pipeline=self._pipeline, partitions=len(new), epoch=self.epoch))
        if new:
            self._spawn(self._begin(new), f"{self._pipeline}-positions-{self.epoch}")

    async def _begin(self, partitions: Sequence[AssignedPartition]) -> None:
        """Give each partition its position, then poll it. A broker that does not answer is asked again."""
        failures = 0
        missing = list(partitions)
        while True:
            missing = [partition for partition in missing if not await self._has_begun(partition)]
            if not missing:
                break
            failures += 1
            await self._clock.sleep(CONNECT_BACKOFF.delay(failures, self._random))
        # So that another member, or we after a crash, do not take the topic for one that the group has never seen.
        await self._committer.commit()

    async def _has_begun(self, partition: AssignedPartition) -> bool:
        if partition.is_closed:
            return True
        if not await self._earlier_poll_is_over(partition):
            return False
        try:
            async with asyncio.timeout(_START_DEADLINE):
                start = await self._starts.find(self._port, partition.tp)
            if partition.feeding is Feeding.NONE:
                return True
            self._port.seek(partition.tp, start.offset)
        except PipelineStopped as error:
            self._fail(error)
            return True
        except (BrokerError, TimeoutError) as error:
            self.last_error = f"no start position for {partition.tp}: {str(error) or 'no answer'}"
            # Lost already, or its time comes again: the listener says which.
            return isinstance(error, AssignmentLost) and partition.is_closed
        self.last_error = None
        partition.progress = Progress(start.offset, start.committed)
        partition.last_taken_at = self._clock.monotonic()
        self._polls[partition.tp] = self._spawn(
            self._poller.poll(partition), f"{self._pipeline}-poll-{partition.tp}-{partition.epoch}"
        )
        return True

    async def _earlier_poll_is_over(self, partition: AssignedPartition) -> bool:
        """A poll of the last assignment blocks through the rebalance and then takes records of this one.

        It drops them; they are read again, since the position is set only after that poll is over.
        """
        poll = self._polls.get(partition.tp)  # stays there: another rebalance may have to wait for it too
        if poll is not None and not poll.done():
            await asyncio.wait({poll}, timeout=_START_DEADLINE)
        return poll is None or poll.done()

    def refused(self, error: BrokerError) -> None:
        """A member that the group never takes owns nothing and would look idle for ever (invariant 12)."""
        self._fail(error)

    # -- partitions go ---------------------------------------------------------------------------------------------------

    async def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """These are taken away: finish what runs, within bounds, commit what is done, forget the rest."""
        going = [self.partitions[tp] for tp in partitions if tp in self.partitions]
        try:
            await self._let_go(going)
        except Exception as error:  # noqa: BLE001 - the client swallows what a listener raises; the pipeline must not
            self._fail(error)
        finally:
            for partition in going:
                self._forget(partition)

    async def _let_go(self, going: Sequence[AssignedPartition]) -> None:
        if not going:
            return
        for partition in going:
            partition.feeding = Feeding.NONE
        self._processing.settlement.waiting.keep(lambda record: record.partition.feeding is not Feeding.NONE)
        late = 0
        if not await self._idle(going, self._drain):
            late = len(self._processing.workers.lingering(going))
            self._processing.workers.abandon(going)
            await self._idle(going, 0.0 if not late else _CANCEL_GRACE)
        await self._committer.commit(deadline=_COMMIT_DEADLINE)
        self._telemetry.emit(
            PartitionsRevoked(
                pipeline=self._pipeline,
                partitions=len(going),
                abandoned=late,
                forgotten=sum(partition.count for partition in going),
            )
        )

    async def _idle(self, partitions: Sequence[AssignedPartition], seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                for partition in partitions:
                    await partition.idle()
        except TimeoutError:
            return False
        return True

    def _forget(self, partition: AssignedPartition) -> None:
        if self.partitions.get(partition.tp) is partition:
            del self.partitions[partition.tp]
        self._processing.forget(partition)

    def forget_all(self) -> None:
        """The membership is over: nothing is ours."""
        for partition in list(self.partitions.values()):
            self._forget(partition)

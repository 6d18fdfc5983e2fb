"""One client of the group from joining to leaving: its tasks, its partitions, and their end in bounded stages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, Final

from outboxd.errors import OutboxdError
from outboxd.pipeline.consumer.assignment import Assignment, drain_seconds
from outboxd.pipeline.consumer.committing import Committer
from outboxd.pipeline.consumer.lag import LagMeter
from outboxd.pipeline.consumer.partition import AssignedPartition, Bounds, Feeding
from outboxd.pipeline.consumer.polling import Poller
from outboxd.pipeline.consumer.processing import Processing
from outboxd.pipeline.consumer.settings import ConsumeSettings
from outboxd.pipeline.consumer.start_position import StartPositions
from outboxd.ports import Admin, Clock, ConsumerPort, Random
from outboxd.records import TopicPartition
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Membership"]

_COMMIT_DEADLINE: Final = 15.0
_LAST_COMMIT: Final = 3.0
_CANCEL_GRACE: Final = 2.0
_LEAVE: Final = 5.0
_LOOK: Final = 0.05


class Membership:
    """Wires the parts that live as long as one `ConsumerPort`. ``rebuild`` is called when that has to be replaced."""

    def __init__(
        self,
        *,
        pipeline: str,
        port: ConsumerPort,
        admin: Admin,
        settings: ConsumeSettings,
        starts: StartPositions,
        processing: Processing,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        fail: Callable[[BaseException], None],
        rebuild: Callable[[], None],
    ) -> None:
        self._pipeline = pipeline
        self._port = port
        self._settings = settings
        self._processing = processing
        self._clock = clock
        self._fail = fail
        self._tasks: set[asyncio.Task[None]] = set()
        self._rebalance_timeout = settings.rebalance_timeout.total_seconds()
        self.partitions: dict[TopicPartition, AssignedPartition] = {}
        self.committer = Committer(
            pipeline=pipeline, port=port, partitions=self.partitions, deadline=_COMMIT_DEADLINE, telemetry=telemetry
        )
        self.poller = Poller(
            pipeline=pipeline,
            port=port,
            lanes=processing.lanes,
            start=settings.start,
            clock=clock,
            telemetry=telemetry,
            fail=fail,
        )
        self.assignment = Assignment(
            pipeline=pipeline,
            port=port,
            partitions=self.partitions,
            bounds=Bounds(records=settings.max_pending, size=settings.max_pending_bytes),
            drain=drain_seconds(self._rebalance_timeout),
            starts=starts,
            poller=self.poller,
            committer=self.committer,
            processing=processing,
            clock=clock,
            random=random,
            telemetry=telemetry,
            spawn=self._spawn,
            fail=fail,
        )
        self.lag = LagMeter(
            pipeline=pipeline,
            port=port,
            admin=admin,
            partitions=self.partitions,
            clock=clock,
            telemetry=telemetry,
            rebuild=rebuild,
        )

    async def join(self) -> None:
        """Join the group and begin. Raises BrokerError; then `discard` ends what was begun."""
        await self._port.start(self.assignment)
        self._spawn(self.committer.every(self._settings.commit_every.total_seconds()), f"{self._pipeline}-commit")
        self._spawn(self.lag.run(), f"{self._pipeline}-lag")

    async def leave(self, *, budget: float) -> None:
        """Take nothing in, finish what was started and the gaps before it, commit, leave; within about ``budget`` seconds.

        Records that wait for a retry or for a sink are left: their offsets were not committed.
        """
        self.assignment.is_closing = True
        for partition in self.partitions.values():
            if partition.feeding is Feeding.ALL:
                partition.feeding = Feeding.GAPS
        # The stages after the handlers are over in no time unless something is wrong: they never take more than half.
        after = _CANCEL_GRACE + _LAST_COMMIT + _LEAVE
        share = min(1.0, budget / 2 / after)
        if not await self._quiet(budget - share * after):
            for partition in self.partitions.values():
                partition.feeding = Feeding.NONE
            self._processing.workers.abandon(list(self.partitions.values()))
            await self._quiet(share * _CANCEL_GRACE)
        await self.committer.commit(deadline=share * _LAST_COMMIT)
        await self._end(share * _LEAVE)

    async def replace(self) -> None:
        """The client does not move: let every partition go as in a rebalance, and end it."""
        self.assignment.is_closing = True
        await self.assignment.revoked(list(self.partitions))
        await self._end(_LEAVE)

    async def discard(self, *, commit: float = 0.0, leave: float = 0.5) -> None:
        """Let go at once."""
        self.assignment.is_closing = True
        for partition in self.partitions.values():
            partition.feeding = Feeding.NONE
        if commit and self.partitions:
            await self.committer.commit(deadline=commit)
        await self._end(leave)

    async def _quiet(self, seconds: float) -> bool:
        """True once nothing is busy and nothing is left to start."""
        give_up = self._clock.monotonic() + seconds
        while self._processing.lanes.drop_unwanted() or any(partition.busy for partition in self.partitions.values()):
            if self._clock.monotonic() >= give_up:
                return False
            self._processing.workers.wake()
            await self._clock.sleep(_LOOK)
        return True

    async def _end(self, seconds: float) -> None:
        self.assignment.forget_all()
        with contextlib.suppress(TimeoutError, OutboxdError):
            async with asyncio.timeout(seconds):
                await self._port.stop()
        # Only now: a poll that is cancelled while its client lives can kill the client's own task (B005).
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

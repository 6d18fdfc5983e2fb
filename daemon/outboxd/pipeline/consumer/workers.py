"""The tasks that call the handler: at most `concurrency`, made when needed, each taking the next ready record.

No task per record and no queue per key; a handler that never suspends costs its own call. A worker survives whatever a
handler raises: it is a failure of the record, `SystemExit` and the like included.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from datetime import timedelta
from enum import Enum, auto
from typing import Final, Protocol

from outboxd.errors import HandlerTimeout
from outboxd.pipeline.consumer.attempt import HandlerCall
from outboxd.pipeline.consumer.lanes import Lanes
from outboxd.pipeline.consumer.partition import AssignedPartition, InHand
from outboxd.pipeline.consumer.standstill import Standstill
from outboxd.records import Stage

__all__ = ["Settles", "Workers"]

_TURN_SECONDS: Final = 0.005
"""How long a worker whose handler never suspends keeps the loop before it lets heartbeats and polls run."""
_TURN_RECORDS: Final = 16
"""How often it looks at the time."""
_CANCEL_AGAIN: Final = 5.0
"""Seconds after which a handler that went on although it was cancelled is cancelled again, and shown."""


class Settles(Protocol):
    """What is told the outcome of each call."""

    def succeeded(self, record: InHand) -> None:
        """The handler returned None."""
        ...

    def failed(self, record: InHand, error: BaseException, stage: Stage) -> None:
        """It failed, could not be called, or returned a verdict."""
        ...

    def abandoned(self, record: InHand) -> None:
        """The call was cancelled since its partition goes away: no failure, no attempt."""
        ...


class _Cancel(Enum):
    """Why we cancelled a call; a cancellation without such a reason is the handler's own doing."""

    NOT = auto()
    TIMEOUT = auto()
    ABANDONED = auto()


class _Worker:
    __slots__ = ("cancel", "deadline", "is_closing", "is_tainted", "record", "stood_still", "task", "timer")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.record: InHand | None = None
        self.deadline = 0.0
        self.stood_still = 0.0
        """What the process had stood still when the call began; infinite once the call got its time back."""
        self.timer: asyncio.TimerHandle | None = None
        self.cancel = _Cancel.NOT
        self.is_closing = False
        self.is_tainted = False
        """Whether a cancellation of the last call may still be on its way to the next await."""


class Workers:
    """Runs calls. ``timeout`` is the handler's deadline; ``on_death`` is told when a worker ends by a fault of our own."""

    def __init__(
        self,
        *,
        name: str,
        call: HandlerCall,
        concurrency: int,
        timeout: timedelta,
        on_death: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._call = call
        self._concurrency = concurrency
        self._timeout = timeout.total_seconds()
        self._timeout_text = f"{self._timeout:g} s"
        self._on_death = on_death
        self._workers: list[_Worker] = []
        self._idle: list[asyncio.Future[None]] = []
        self._is_waking = False
        self._is_closed = False
        self._lanes: Lanes | None = None
        self._settlement: Settles | None = None
        self._standstill = Standstill()

    def connect(self, lanes: Lanes, settlement: Settles) -> None:
        """Say where records come from and where outcomes go."""
        self._lanes = lanes
        self._settlement = settlement

    @property
    def in_flight(self) -> int:
        """Calls that are running."""
        return sum(worker.record is not None for worker in self._workers)

    def overdue(self) -> InHand | None:
        """A record whose handler runs past its deadline and cannot be ended; None when there is none.

        A plain function cannot be cancelled, and a coroutine may swallow its cancellation.
        """
        now = asyncio.get_running_loop().time() - (0.0 if self._call.is_plain else _CANCEL_AGAIN)
        return next((w.record for w in self._workers if w.record is not None and now >= w.deadline), None)

    def wake(self) -> None:
        """There may be something to take: see that a worker looks. That one wakes the next while there is more."""
        if self._is_waking or self._is_closed:
            return
        while self._idle:
            parked = self._idle.pop()
            if not parked.done():
                self._is_waking = True
                parked.set_result(None)
                return
        if len(self._workers) < self._concurrency:
            self._is_waking = True
            worker = _Worker()
            self._workers.append(worker)
            worker.task = asyncio.create_task(self._work(worker), name=f"{self._name}-worker-{len(self._workers)}")
            worker.task.add_done_callback(lambda task: self._ended(worker, task))

    def abandon(self, partitions: Collection[AssignedPartition]) -> None:
        """Cancel the coroutine handlers that still work on these partitions; plain functions cannot be."""
        if self._call.is_plain:
            return
        for worker in self._workers:
            if worker.record is not None and worker.record.partition in partitions and worker.task is not None:
                worker.cancel = _Cancel.ABANDONED
                worker.task.cancel()

    def lingering(self, partitions: Collection[AssignedPartition]) -> list[InHand]:
        """The records of these partitions that are still being worked on."""
        return [w.record for w in self._workers if w.record is not None and w.record.partition in partitions]

    async def close(self) -> None:
        """End every worker; calls that still run are cancelled and give no outcome."""
        self._is_closed = True
        self._standstill.close()
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        for worker in self._workers:
            worker.is_closing = True
            if worker.timer is not None:
                worker.timer.cancel()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)

    # -- one worker ------------------------------------------------------------------------------------------------------

    async def _work(self, worker: _Worker) -> None:
        lanes, settlement = self._lanes, self._settlement
        assert lanes is not None
        assert settlement is not None
        loop = asyncio.get_running_loop()
        self._is_waking = False
        turn_began, taken = loop.time(), 0
        while True:
            record = lanes.take()
            if record is None:
                await self._park(loop)
                turn_began = loop.time()
                continue
            if len(lanes):
                self.wake()
            await self._attempt(worker, record, settlement, loop)
            if worker.is_tainted or (worker.task is not None and worker.task.cancelling()):
                await self._absorb(worker)
            taken += 1
            if taken % _TURN_RECORDS == 0 and loop.time() - turn_began >= _TURN_SECONDS:
                await asyncio.sleep(0)
                turn_began = loop.time()

    async def _park(self, loop: asyncio.AbstractEventLoop) -> None:
        parked = loop.create_future()
        self._idle.append(parked)
        await parked
        self._is_waking = False

    async def _attempt(
        self, worker: _Worker, record: InHand, settlement: Settles, loop: asyncio.AbstractEventLoop
    ) -> None:
        partition = record.partition
        partition.busy += 1
        worker.record = record
        stage = Stage.DECODE
        try:
            failing = record.failing
            decoded = self._call.decode(record.raw, 1 if failing is None else failing.attempts + 1)
            stage = Stage.HANDLE
            self._set_deadline(worker, loop)
            await self._call.call(decoded)
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises belongs to its record (B061)
            worker.record = None
            self._failed(worker, record, error, stage, settlement)
        else:
            worker.record = None
            if worker.cancel is not _Cancel.NOT:
                # The handler finished although it was cancelled: what it did is done.
                self._uncancel(worker)
            settlement.succeeded(record)
        finally:
            worker.record = None
            partition.ended()

    def _failed(self, worker: _Worker, record: InHand, error: BaseException, stage: Stage, settlement: Settles) -> None:
        if worker.is_closing:
            if isinstance(error, asyncio.CancelledError | GeneratorExit):
                raise error
            settlement.abandoned(record)
            return
        match worker.cancel:
            case _Cancel.TIMEOUT if isinstance(error, asyncio.CancelledError):
                self._uncancel(worker)
                timeout = HandlerTimeout(
                    f"the handler did not return within {self._timeout_text}",
                    suggestion="make the handler faster, or raise handler.timeout",
                )
                timeout.__cause__ = error
                settlement.failed(record, timeout, stage)
            case _Cancel.ABANDONED:
                self._uncancel(worker)
                settlement.abandoned(record)
            case _Cancel.TIMEOUT | _Cancel.NOT:
                self._uncancel(worker)
                settlement.failed(record, error, stage)

    def _uncancel(self, worker: _Worker) -> None:
        worker.cancel = _Cancel.NOT
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            worker.is_tainted = True
            task.uncancel()

    async def _absorb(self, worker: _Worker) -> None:
        """Take what is left of a cancellation, ours or the handler's own: it must not hit the next record's handler."""
        worker.is_tainted = False
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if worker.is_closing:
                raise
        self._uncancel(worker)
        worker.is_tainted = False

    # -- the handler's deadline: one timer per worker and deadline, not per record ---------------------------------------

    def _set_deadline(self, worker: _Worker, loop: asyncio.AbstractEventLoop) -> None:
        worker.deadline = loop.time() + self._timeout
        worker.stood_still = self._standstill.total
        if worker.timer is None and not self._call.is_plain:
            self._standstill.watch(loop)
            worker.timer = loop.call_at(worker.deadline, self._check_deadline, worker, loop)

    def _check_deadline(self, worker: _Worker, loop: asyncio.AbstractEventLoop) -> None:
        worker.timer = None
        if worker.record is None or worker.task is None or worker.is_closing:
            return
        if loop.time() < worker.deadline:
            worker.timer = loop.call_at(worker.deadline, self._check_deadline, worker, loop)
            return
        stood_still = self._standstill.total - worker.stood_still
        if worker.cancel is _Cancel.NOT and stood_still > 0:
            # The handler gets that time back, or every record that was being handled would be charged with it. Once
            # over its own time and no more: a handler that blocks the loop makes the process stand still itself.
            worker.stood_still = math.inf
            worker.deadline += min(stood_still, self._timeout)
            worker.timer = loop.call_at(worker.deadline, self._check_deadline, worker, loop)
            return
        if worker.cancel is _Cancel.NOT:
            worker.cancel = _Cancel.TIMEOUT
        worker.timer = loop.call_later(_CANCEL_AGAIN, self._check_deadline, worker, loop)
        worker.task.cancel()

    def _ended(self, worker: _Worker, task: asyncio.Task[None]) -> None:
        self._workers.remove(worker)
        if task.cancelled() or worker.is_closing:
            return
        error = task.exception()
        if error is not None:
            self._on_death(error)

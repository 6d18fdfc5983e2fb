"""One poll task per assigned partition: fetches, hands over to the lanes at once, and goes on polling whatever happens.

Handlers, backoffs, outages and dead sinks never hold it up: at its bound the partition is paused and still polled, which
keeps the member in its group. A poll that raises concerns its own partition only; no lock is held across one (B008).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from outboxd.errors import AssignmentLost, BrokerError, FetchUndecodable, OffsetOutOfRange, PipelineStopped
from outboxd.pipeline.consumer.lanes import Lanes
from outboxd.pipeline.consumer.partition import AssignedPartition, Feeding
from outboxd.pipeline.consumer.start_position import StartPolicy
from outboxd.ports import Clock, ConsumerPort
from outboxd.records import RawRecord
from outboxd.telemetry.consumer import PartitionParked, RangeLost
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Poller"]

_BATCH: Final = 500
_WAIT: Final = timedelta(seconds=1)
_PAUSE_AFTER_ERROR: Final = 1.0
_POSITION_DEADLINE: Final = 10.0


class Poller:
    """Polls partitions of one member. ``fail`` ends the pipeline."""

    def __init__(
        self,
        *,
        pipeline: str,
        port: ConsumerPort,
        lanes: Lanes,
        start: StartPolicy,
        clock: Clock,
        telemetry: Telemetry,
        fail: Callable[[BaseException], None],
    ) -> None:
        self._pipeline = pipeline
        self._port = port
        self._lanes = lanes
        self._start = start
        self._clock = clock
        self._telemetry = telemetry
        self._fail = fail

    async def poll(self, partition: AssignedPartition) -> None:
        """Poll this partition until it is not ours any more."""
        while not partition.is_closed:
            self._hold_back(partition)
            try:
                records = await self._port.poll(
                    partition.tp, max_records=max(1, min(_BATCH, partition.room)), timeout=_WAIT
                )
                if partition.feeding is not Feeding.ALL:
                    # What came now is not in hand: it stays for the partition's next owner, and so does the position.
                    return
                partition.last_error = None
                if records:
                    self._hand_over(partition, records)
                else:
                    await self._follow_position(partition)
            except AssignmentLost:
                # The listener tells us in its own time; until then there is nothing to poll.
                await self._clock.sleep(_PAUSE_AFTER_ERROR)
            except OffsetOutOfRange as error:
                await self._go_on_at_start(partition, error)
            except FetchUndecodable as error:
                await self._park(partition, error)
            except (BrokerError, TimeoutError) as error:
                partition.last_error = (
                    error if isinstance(error, BrokerError) else BrokerError(str(error) or "no answer")
                )
                await self._clock.sleep(_PAUSE_AFTER_ERROR)

    def resume(self, partition: AssignedPartition) -> None:
        """The partition may have room again."""
        if partition.is_paused and not partition.is_parked and not partition.is_closed and partition.may_resume:
            partition.is_paused = False
            self._port.resume(partition.tp)

    def _hold_back(self, partition: AssignedPartition) -> None:
        if not partition.is_paused and (partition.room == 0 or partition.is_parked):
            partition.is_paused = True
            self._port.pause(partition.tp)

    def _hand_over(self, partition: AssignedPartition, records: Sequence[RawRecord]) -> None:
        lane_of = self._lanes.lane_of
        taken = []
        for raw in records:
            record = partition.take(raw, lane_of(raw))
            if record is not None:
                taken.append(record)
        partition.last_taken_at = self._clock.monotonic()
        self._lanes.add(taken)

    async def _follow_position(self, partition: AssignedPartition) -> None:
        """Markers of transactions occupy offsets too: nothing of them is ever in hand (B010).

        Only between two polls of this very task is all in hand that lies before the client's position.
        """
        progress = partition.progress
        if progress is None or partition.is_paused:
            return
        async with asyncio.timeout(_POSITION_DEADLINE):
            position = await self._port.position(partition.tp)
        if partition.feeding is Feeding.ALL and position > progress.position:
            progress.reached(position)
            partition.last_taken_at = self._clock.monotonic()

    async def _go_on_at_start(self, partition: AssignedPartition, error: OffsetOutOfRange) -> None:
        progress = partition.progress
        if progress is None or partition.feeding is not Feeding.ALL:
            return
        if self._start == "fail":
            self._fail(
                PipelineStopped(
                    f"offset {progress.position} of {partition.tp} is not in the log ({error}), and `start: fail` forbids "
                    "to go on elsewhere",
                    suggestion="commit an offset that exists for the group, or set consume.start: earliest",
                )
            )
            await self._clock.sleep(_PAUSE_AFTER_ERROR)
            return
        try:
            async with asyncio.timeout(_POSITION_DEADLINE):
                first = await self._port.beginning_offset(partition.tp)
            if first < progress.position and progress.pending:
                # The topic was made anew; what is in hand of the old one is finished first.
                await self._clock.sleep(_PAUSE_AFTER_ERROR)
                return
            self._port.seek(partition.tp, first)
        except (BrokerError, TimeoutError):
            await self._clock.sleep(_PAUSE_AFTER_ERROR)
            return
        self._telemetry.emit(
            RangeLost(
                pipeline=self._pipeline,
                topic=partition.tp.topic,
                partition=partition.tp.partition,
                wanted=progress.position,
                first=first,
            )
        )
        if first < progress.position:
            progress.restart(first)
        else:
            progress.reached(first)

    async def _park(self, partition: AssignedPartition, error: FetchUndecodable) -> None:
        if partition.is_parked:
            await self._clock.sleep(_PAUSE_AFTER_ERROR)
            return
        position = -1 if partition.progress is None else partition.progress.position
        partition.is_parked = True
        partition.parked_reason = f"{partition.tp} cannot be read from offset {position} on: {error}"
        self._telemetry.emit(
            PartitionParked(
                pipeline=self._pipeline,
                topic=partition.tp.topic,
                partition=partition.tp.partition,
                offset=position,
                error=str(error)[:500],
            )
        )

"""Measures how far behind each partition is, and notices a client that has records to read and does not move."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from outboxd.errors import AssignmentLost, BrokerError, BrokerUnreachable
from outboxd.pipeline.consumer.partition import AssignedPartition
from outboxd.ports import Admin, Clock, ConsumerPort
from outboxd.records import TopicPartition
from outboxd.telemetry.consumer import ConsumerRebuilt, LagMeasured
from outboxd.telemetry.emitter import Telemetry

__all__ = ["LagMeter"]

_EVERY: Final = 5.0
_DEADLINE: Final = 10.0
_STILL_AFTER: Final = 120.0
"""With records to read, room for them and a broker that answers: so long without one means a client that died inside."""


class LagMeter:
    """Measures until cancelled. ``rebuild`` is called when the client has to be replaced (B005)."""

    def __init__(
        self,
        *,
        pipeline: str,
        port: ConsumerPort,
        admin: Admin,
        partitions: Mapping[TopicPartition, AssignedPartition],
        clock: Clock,
        telemetry: Telemetry,
        rebuild: Callable[[], None],
    ) -> None:
        self._pipeline = pipeline
        self._port = port
        self._admin = admin
        self._partitions = partitions
        self._clock = clock
        self._telemetry = telemetry
        self._rebuild = rebuild
        self.lags: dict[TopicPartition, int] = {}
        self.last_error: BrokerUnreachable | None = None

    async def run(self) -> None:
        """Measure every few seconds."""
        while True:
            await self._measure()
            await self._clock.sleep(_EVERY)

    async def _measure(self) -> None:
        lags: dict[TopicPartition, int] = {}
        error: BrokerUnreachable | None = None
        for partition in list(self._partitions.values()):
            if partition.progress is None:
                continue
            try:
                async with asyncio.timeout(_DEADLINE):
                    end = await self._port.end_offset(partition.tp)
            except (BrokerUnreachable, TimeoutError) as unreachable:
                error = BrokerUnreachable(
                    f"the end of {partition.tp} cannot be read: {str(unreachable) or 'no answer'}"
                )
                self._excuse_all()
                break
            except AssignmentLost:
                continue
            except BrokerError as failed:
                error = BrokerUnreachable(f"the end of {partition.tp} cannot be read: {failed}")
                continue
            if not partition.is_closed:
                lags[partition.tp] = max(0, end - partition.progress.safe)
                self._watch(partition, end)
        self.last_error = error if lags or error is not None else await self._ask()
        self.lags = lags
        parked = sum(partition.is_parked for partition in self._partitions.values())
        self._telemetry.emit(LagMeasured(pipeline=self._pipeline, lags=lags, parked=parked))

    async def _ask(self) -> BrokerUnreachable | None:
        """Ask for a sign of life: a member that waits for partitions must not look idle without a broker (invariant 12)."""
        try:
            async with asyncio.timeout(_DEADLINE):
                await self._admin.cluster_id()
        except (BrokerError, TimeoutError) as error:
            return BrokerUnreachable(f"the broker gives no sign of life: {str(error) or 'no answer'}")
        return None

    def _excuse_all(self) -> None:
        """An outage is no fault of the client: its time without a record does not count."""
        now = self._clock.monotonic()
        for partition in self._partitions.values():
            partition.last_taken_at = now

    def _watch(self, partition: AssignedPartition, end: int) -> None:
        now = self._clock.monotonic()
        progress = partition.progress
        if progress is None or end <= progress.position or partition.is_paused or partition.is_parked:
            partition.last_taken_at = now
            return
        still_for = now - partition.last_taken_at
        if still_for >= _STILL_AFTER:
            self._telemetry.emit(
                ConsumerRebuilt(pipeline=self._pipeline, partition=str(partition.tp), seconds=still_for)
            )
            self._rebuild()

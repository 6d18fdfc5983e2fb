"""Commits what is done: one path, one commit at a time, with its own deadline, cut to the partitions that are ours.

On a schedule, on revoke and on stop. A commit that is refused because partitions moved on means "delivered elsewhere":
nothing of it is an error of a record, and what is kept is committed the next time (B002).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from outboxd.errors import AssignmentLost, BrokerError
from outboxd.pipeline.consumer.partition import AssignedPartition
from outboxd.ports import ConsumerPort
from outboxd.records import TopicPartition
from outboxd.telemetry.consumer import CommitFailed, OffsetsCommitted
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Committer"]


class Committer:
    """Commits for one member of the group. ``partitions`` is the live map of what is ours; ``deadline`` in seconds."""

    def __init__(
        self,
        *,
        pipeline: str,
        port: ConsumerPort,
        partitions: Mapping[TopicPartition, AssignedPartition],
        deadline: float,
        telemetry: Telemetry,
    ) -> None:
        self._pipeline = pipeline
        self._port = port
        self._partitions = partitions
        self._deadline = deadline
        self._telemetry = telemetry
        self._one_at_a_time = asyncio.Lock()
        self.last_error: str | None = None

    async def commit(self, *, deadline: float | None = None) -> bool:
        """Commit every contiguous prefix that moved (invariant 4); False when it failed. Never raises BrokerError."""
        try:
            async with asyncio.timeout(self._deadline if deadline is None else deadline), self._one_at_a_time:
                return await self._commit()
        except TimeoutError:
            self._failed("the commit was not answered in time", is_lost=False)
            return False

    async def every(self, seconds: float) -> None:
        """Commit on a schedule until cancelled."""
        while True:
            await asyncio.sleep(seconds)
            await self.commit()

    async def _commit(self) -> bool:
        # Read under the lock: a partition that was taken meanwhile is not in the map any more.
        moved = _moved(self._partitions.values())
        if not moved:
            return True
        incarnations = {partition: partition.progress.incarnation for partition in moved if partition.progress}
        try:
            await self._port.commit({partition.tp: (offset, "") for partition, offset in moved.items()})
        except BrokerError as error:
            self._failed(f"{type(error).__name__}: {error}", is_lost=isinstance(error, AssignmentLost))
            return False
        for partition, offset in moved.items():
            progress = partition.progress
            if progress is not None and progress.incarnation == incarnations[partition]:
                progress.commit_acknowledged(offset)
        self.last_error = None
        self._telemetry.emit(
            OffsetsCommitted(pipeline=self._pipeline, offsets={p.tp: offset for p, offset in moved.items()})
        )
        return True

    def _failed(self, error: str, *, is_lost: bool) -> None:
        self.last_error = None if is_lost else error
        self._telemetry.emit(CommitFailed(pipeline=self._pipeline, error=error, is_lost=is_lost))


def _moved(partitions: Iterable[AssignedPartition]) -> dict[AssignedPartition, int]:
    """The next offset of each partition that is ours and has something new."""
    return {
        partition: offset
        for partition in partitions
        if not partition.is_closed
        and partition.progress is not None
        and (offset := partition.progress.committable()) is not None
    }

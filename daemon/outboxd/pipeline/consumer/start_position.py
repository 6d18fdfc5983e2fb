"""Where reading a partition starts: at the committed offset, else by the start policy, which is for the first sight only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from outboxd.errors import PipelineStopped
from outboxd.ports import Admin, ConsumerPort
from outboxd.records import TopicPartition

__all__ = ["StartPolicy", "StartPosition", "StartPositions"]

StartPolicy = Literal["earliest", "latest", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """The offset to read first, and the one that is committed already (None: none)."""

    offset: int
    committed: int | None


class StartPositions:
    """Finds start positions for one run of a pipeline.

    The policy holds when the group has no committed offset on *any* partition of the topic. Otherwise a partition
    without one was added later, and is read from its start: with `latest` its first records would be lost (B012). A
    position that was once found is remembered: a rebalance before the first commit must not move it.
    """

    def __init__(self, *, policy: StartPolicy, group: str, admin: Admin) -> None:
        self._policy = policy
        self._group = group
        self._admin = admin
        self._found: dict[TopicPartition, int] = {}
        self._first_sights: dict[str, int] = {}
        """For each topic how many partitions it had when the group saw it first; 0 when it was known before this run."""

    async def find(self, port: ConsumerPort, tp: TopicPartition) -> StartPosition:
        """Where to start. Raises BrokerError; PipelineStopped when the policy is `fail`."""
        committed = await port.committed(tp)
        if committed is not None and committed[0] >= 0:
            # Known from now on, also when its offsets go with the topic and it is made anew.
            self._found.pop(tp, None)
            self._first_sights[tp.topic] = 0
            return StartPosition(offset=committed[0], committed=committed[0])
        if tp not in self._found:
            self._found[tp] = await self._first(port, tp)
        return StartPosition(offset=self._found[tp], committed=None)

    async def _first(self, port: ConsumerPort, tp: TopicPartition) -> int:
        if self._policy == "earliest" or await self._is_known(port, tp):
            return await port.beginning_offset(tp)
        if self._policy == "latest":
            return await port.end_offset(tp)
        raise PipelineStopped(
            f"group {self._group} has no committed offset on topic {tp.topic}, and `start: fail` forbids to choose one",
            suggestion="set consume.start to earliest or latest, or commit an offset for the group",
        )

    async def _is_known(self, port: ConsumerPort, tp: TopicPartition) -> bool:
        """True when the group knows the topic, or saw it first when this partition did not exist yet."""
        if tp.topic not in self._first_sights:
            count = (await self._admin.topic(tp.topic)).partitions
            others = (TopicPartition(tp.topic, partition) for partition in range(count))
            is_known = False
            for other in others:
                is_known = is_known or await port.committed(other) is not None
            self._first_sights[tp.topic] = 0 if is_known else count
        return tp.partition >= self._first_sights[tp.topic]

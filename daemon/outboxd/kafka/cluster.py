"""Questions about topics and offsets that never create a topic and never wait longer than they are told."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiokafka.errors as kafka
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

from outboxd.errors import TopicDenied, TopicError, TopicUnknown
from outboxd.kafka.bounded import retrying
from outboxd.ports import TopicInfo
from outboxd.records import TopicPartition

__all__ = ["EARLIEST", "LATEST", "TopicDirectory", "cluster_id", "leaders", "list_offsets"]

EARLIEST: Final = -2
LATEST: Final = -1

_TOPIC_RESOURCE: Final = 2
_LIMITS: Final = (
    "max.message.bytes",
    "message.timestamp.type",
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
)
_NO_LIMIT: Final = 2**63 - 1
_FRESH: Final = 30.0
_UNKNOWN_FOR: Final = 2.0


async def cluster_id(client: Any, *, seconds: float) -> str:
    """The cluster's id. Raises BrokerUnreachable, BrokerDenied."""

    async def ask() -> str:
        answer = await _any_node(client, MetadataRequest([], allow_auto_topic_creation=False))
        return str(answer.cluster_id)

    return await retrying(ask, seconds=seconds, doing="ask for the cluster's id")


async def leaders(client: Any, topic: str, *, seconds: float) -> Mapping[int, int]:
    """For each partition of the topic its leader's node id, -1 while there is none.

    Unlike the client's own look-up this never makes the topic. Raises TopicUnknown, TopicDenied, BrokerUnreachable.
    """

    async def ask() -> Mapping[int, int]:
        answer = await _any_node(client, MetadataRequest([topic], allow_auto_topic_creation=False))
        (described,) = answer.topics
        error = kafka.for_code(described[0])
        if error is kafka.UnknownTopicOrPartitionError:
            raise TopicUnknown(
                f"topic {topic} does not exist", topic=topic, suggestion="Create it: outboxd makes no topic."
            )
        if error is kafka.InvalidTopicError:
            raise TopicUnknown(f"{topic!r} cannot be a topic's name", topic=topic, suggestion="Correct the name.")
        if error is kafka.TopicAuthorizationFailedError:
            raise TopicDenied(
                f"this user may not describe topic {topic}", topic=topic, suggestion="Give it the Describe ACL."
            )
        if error is not kafka.NoError:
            raise error
        return {partition[1]: partition[2] for partition in described[-1]}

    return await retrying(ask, seconds=seconds, doing=f"look up topic {topic}", topic=topic)


async def list_offsets(
    client: Any, partitions: Collection[TopicPartition], at: int, *, seconds: float, committed_only: bool = False
) -> dict[TopicPartition, int]:
    """The first (``EARLIEST``) or next (``LATEST``) offset of each partition, asked of its leader.

    ``committed_only`` ends at the last stable offset. Raises TopicUnknown, TopicDenied, BrokerUnreachable.
    """
    doing = "read the offsets of " + ", ".join(map(str, partitions))
    isolation = 1 if committed_only else 0

    async def ask() -> dict[TopicPartition, int]:
        known = {topic: await leaders(client, topic, seconds=seconds) for topic in {p.topic for p in partitions}}
        offsets = {}
        for leader, wanted in _by_leader(partitions, known).items():
            topics: dict[str, list[tuple[int, int]]] = {}
            for partition in wanted:
                topics.setdefault(partition.topic, []).append((partition.partition, at))
            answer = await client.send(leader, OffsetRequest(-1, isolation, list(topics.items())))
            for topic, described in answer.topics:
                for number, code, _, offset in described:
                    error = kafka.for_code(code)
                    if error is not kafka.NoError:
                        raise error(topic)
                    offsets[TopicPartition(topic, number)] = offset
        return offsets

    return await retrying(ask, seconds=seconds, doing=doing)


def _by_leader(
    partitions: Collection[TopicPartition], known: Mapping[str, Mapping[int, int]]
) -> dict[int, list[TopicPartition]]:
    grouped: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        leader = known[partition.topic].get(partition.partition)
        if leader is None:
            raise TopicUnknown(f"topic {partition.topic} has no partition {partition.partition}", topic=partition.topic)
        if leader < 0:
            raise kafka.LeaderNotAvailableError(str(partition))
        grouped.setdefault(leader, []).append(partition)
    return grouped


async def _any_node(client: Any, request: object) -> Any:
    node = client.get_random_node()
    if node is None:
        raise kafka.NodeNotReadyError("no broker is known")
    return await client.send(node, request)


@dataclass(frozen=True, slots=True)
class _Entry:
    until: float
    answer: TopicInfo | TopicError


class TopicDirectory:
    """Looks topics up and remembers the answer: 30 s what a topic is, 2 s that there is none.

    Partitions that are added are seen after that time.
    """

    def __init__(self, client: Any, *, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._seconds = seconds
        self._clock = clock
        self._entries: dict[str, _Entry] = {}

    def remembered(self, name: str) -> TopicInfo | None:
        """The topic when its entry is fresh; raises TopicUnknown or TopicDenied when that is what is remembered."""
        entry = self._entries.get(name)
        if entry is None or entry.until < self._clock():
            return None
        if isinstance(entry.answer, TopicError):
            answer = entry.answer
            raise type(answer)(answer.message, topic=answer.topic, suggestion=answer.suggestion)
        return entry.answer

    async def get(self, name: str) -> TopicInfo:
        """The topic, at most 30 s old. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        return self.remembered(name) or await self.look_up(name)

    async def look_up(self, name: str) -> TopicInfo:
        """The topic as it is now."""
        try:
            partitions = await leaders(self._client, name, seconds=self._seconds)
        except TopicError as error:
            self._entries[name] = _Entry(self._clock() + _UNKNOWN_FOR, error)
            raise
        info = _topic_info(name, len(partitions), await self._limits(name))
        self._entries[name] = _Entry(self._clock() + _FRESH, info)
        return info

    async def _limits(self, name: str) -> Mapping[str, str]:
        """The topic's limits by their names; empty when this user may not read configurations."""

        async def ask() -> Mapping[str, str]:
            answer = await _any_node(self._client, DescribeConfigsRequest([(_TOPIC_RESOURCE, name, list(_LIMITS))]))
            (described,) = answer.resources
            error = kafka.for_code(described[0])
            if error in (kafka.TopicAuthorizationFailedError, kafka.ClusterAuthorizationFailedError):
                return {}
            if error is not kafka.NoError:
                raise error(described[1])
            return {entry[0]: entry[1] for entry in described[4]}

        return await retrying(ask, seconds=self._seconds, doing=f"read the limits of topic {name}", topic=name)


def _topic_info(name: str, partitions: int, limits: Mapping[str, str]) -> TopicInfo:
    checks_timestamps = limits.get("message.timestamp.type", "CreateTime") == "CreateTime"
    return TopicInfo(
        name=name,
        partitions=partitions,
        max_message_bytes=_limit(limits.get("max.message.bytes")),
        timestamp_before_max=_limit(limits.get("message.timestamp.before.max.ms")) if checks_timestamps else None,
        timestamp_after_max=_limit(limits.get("message.timestamp.after.max.ms")) if checks_timestamps else None,
    )


def _limit(text: str | None) -> int | None:
    return None if text is None or int(text) >= _NO_LIMIT else int(text)

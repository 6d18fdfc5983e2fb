"""Sink `kafka`: a topic for dead letters, readable by anything that reads Kafka Connect's."""

from __future__ import annotations

import asyncio
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from outboxd.api import (
    KafkaConnectionName,
    Letter,
    PluginContext,
    PluginSettings,
    RawRecord,
    Refused,
    StatelessPlugin,
    Stored,
)
from outboxd.errors import BrokerError, OffsetOutOfRange, RecordRejected, SinkUnavailable, TopicUnknown
from outboxd_plugins.sinks.letter_json import LetterUnreadable
from outboxd_plugins.sinks.letter_record import letter_of, record_of

__all__ = ["KafkaSink", "KafkaSinkSettings"]

_PLACEHOLDERS: Final = ("topic", "group", "pipeline")
_LIMIT_SECONDS: Final = 60.0
_AT_ONCE: Final = 32


Dialect = Literal["connect", "spring"]
"""Whose headers a dead letter carries."""


def _default_dialects() -> list[Dialect]:
    return ["connect"]


class KafkaSinkSettings(PluginSettings):
    """Settings of sink `kafka`."""

    connection: KafkaConnectionName
    """The Kafka connection to publish to."""
    topic: Annotated[str, Field(min_length=1)] = "{topic}.dlq"
    """The topic for dead letters; `{topic}`, `{group}` and `{pipeline}` stand for the failed record's. It takes records
    16 KiB larger than the topics whose letters it gets."""
    dialects: list[Dialect] = Field(default_factory=_default_dialects)
    """Whose headers are written beside our own: `connect` (`__connect.errors.*`)."""

    @field_validator("topic")
    @classmethod
    def _has_known_placeholders(cls, topic: str) -> str:
        unknown = [name for name in re.findall(r"\{(.*?)\}", topic) if name not in _PLACEHOLDERS]
        if unknown:
            raise ValueError(f"{{{unknown[0]}}} is not known here; use {{topic}}, {{group}} or {{pipeline}}")
        return topic

    @field_validator("dialects")
    @classmethod
    def _has_available_dialects(cls, dialects: list[Dialect]) -> list[Dialect]:
        if "spring" in dialects:
            raise PydanticCustomError("not_available_yet", "dialect `spring` is not available yet; leave it out")
        return dialects


class KafkaSink(StatelessPlugin):
    """Publishes each letter to the partition of its key, never to a partition by number: the topic may have fewer."""

    Settings: ClassVar[type[PluginSettings]] = KafkaSinkSettings
    is_durable: ClassVar[bool] = True

    def __init__(self, settings: KafkaSinkSettings, context: PluginContext) -> None:
        super().__init__(settings, context)
        self._connection = settings.connection
        self._template = settings.topic
        self._dialects = settings.dialects
        self._limits: dict[str, tuple[float, int | None]] = {}
        self._written: set[str] = set()
        self._turn = 0
        self._foreign = context.meter.create_counter(
            "outboxd_sink_foreign_records", description="Records of a dead-letter topic that are no letters of ours"
        )

    async def write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        """Publish the letters, those of one key in order. Raises SinkUnavailable; then some may be in the topic."""
        answers: dict[int, Stored | Refused] = {}
        lanes: defaultdict[object, list[int]] = defaultdict(list)
        for index, letter in enumerate(letters):
            lanes[(letter.topic, letter.key) if letter.key is not None else index].append(index)
        room = asyncio.Semaphore(_AT_ONCE)

        async def publish(indexes: Sequence[int]) -> None:
            async with room:
                for index in indexes:
                    answers[index] = await self._publish(letters[index])

        try:
            async with asyncio.TaskGroup() as group:
                for indexes in lanes.values():
                    group.create_task(publish(indexes), name=f"sink {self._context.name}")
        except ExceptionGroup as errors:
            first = _broker_error(errors)
            raise SinkUnavailable(
                f"kafka connection {self._connection}: {first}", suggestion=first.suggestion
            ) from first
        return [answers[index] for index in range(len(letters))]

    async def read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
        """Letters after ``position``, oldest first; it is JSON: for each topic the next offset of each partition.

        Records that are no letters are counted and passed over. Raises SinkUnavailable.
        """
        offsets = _parse(position)
        topics = self._topics(offsets)
        letters: list[Letter] = []
        left = limit
        # Begin with another topic each time: one that fills faster than it is read must not hide the others.
        self._turn += 1
        for topic in topics[self._turn % len(topics) :] + topics[: self._turn % len(topics)] if topics else []:
            records = await self._read(topic, offsets, left)
            left -= len(records)
            for record in records:
                partitions = offsets.setdefault(topic, {})
                partitions[record.partition] = max(partitions.get(record.partition, 0), record.offset + 1)
                if (letter := self._letter(record)) is not None:
                    letters.append(letter)
            if left <= 0:
                break
        letters.sort(key=lambda letter: letter.last_failed_at)
        return letters, json.dumps(offsets, sort_keys=True)

    async def _publish(self, letter: Letter) -> Stored | Refused:
        topic = self._topic(letter.topic, letter.group, letter.pipeline)
        record = record_of(letter, self._dialects, await self._room(topic))
        kafka = self._context.connections.kafka(self._connection)
        try:
            position = await kafka.send(
                topic, key=record.key, value=record.value, headers=record.headers, timestamp=record.timestamp
            )
        except RecordRejected as error:
            return Refused(reason=f"topic {topic}: {error}")
        self._written.add(topic)
        return Stored(detail=f"{position.topic}-{position.partition}@{position.offset}")

    async def _room(self, topic: str) -> int | None:
        now = self._context.clock.monotonic()
        known = self._limits.get(topic)
        if known is None or now - known[0] > _LIMIT_SECONDS:
            kafka = self._context.connections.kafka(self._connection)
            known = (now, await kafka.max_message_bytes(topic))
            self._limits[topic] = known
        return known[1]

    async def _read(self, topic: str, offsets: dict[str, dict[int, int]], limit: int) -> Sequence[RawRecord]:
        kafka = self._context.connections.kafka(self._connection)
        try:
            try:
                return await kafka.read(topic, offsets.get(topic, {}), limit)
            except OffsetOutOfRange:
                # Trimmed, or made anew under the same name: from its start. A letter that is home already stays once.
                self._context.logger.warning("sink_position_lost", sink=self._context.name, topic=topic)
                offsets.pop(topic, None)
                return await kafka.read(topic, {}, limit)
        except TopicUnknown:
            return ()  # nobody has written a letter yet
        except BrokerError as error:
            raise SinkUnavailable(
                f"kafka connection {self._connection}: {error}", suggestion=error.suggestion
            ) from error

    def _letter(self, record: RawRecord) -> Letter | None:
        try:
            return letter_of(record)
        except LetterUnreadable as error:
            self._foreign.add(1, {"pipeline": self._context.pipeline, "sink": self._context.name})
            self._context.logger.debug(
                "sink_record_foreign",
                sink=self._context.name,
                record=f"{record.topic}-{record.partition}@{record.offset}",
                reason=str(error),
            )
            return None

    def _topics(self, offsets: Mapping[str, object]) -> list[str]:
        context = self._context
        configured = {self._topic(topic, context.group, context.pipeline) for topic in context.topics}
        if "{topic}" not in self._template:
            configured.add(self._topic("", context.group, context.pipeline))
        return sorted(configured | self._written | set(offsets))

    def _topic(self, topic: str, group: str | None, pipeline: str) -> str:
        values = {"topic": topic, "group": group or pipeline, "pipeline": pipeline}
        return re.sub(r"\{(.*?)\}", lambda match: values[match[1]], self._template)


def _parse(position: str | None) -> dict[str, dict[int, int]]:
    if position is None:
        return {}
    try:
        return {
            str(topic): {int(partition): int(offset) for partition, offset in partitions.items()}
            for topic, partitions in json.loads(position).items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}  # not a position of ours: from the start, since a letter that is home already stays once


def _broker_error(errors: ExceptionGroup[Exception]) -> BrokerError:
    """The first of the broker's errors; raises the group when there is anything else in it, which would be a bug."""
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    if not isinstance(first, BrokerError):
        raise errors
    return first

"""What the tests of sinks share: a topic in memory, connections by name, a context, letters of every shape."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from opentelemetry.metrics import NoOpMeter

from outboxd.api import Headers, Letter, PluginContext, RawRecord, Stage, TimestampType
from outboxd.errors import RecordRejected, TopicUnknown
from outboxd.ports import Files
from outboxd.records import Position
from outboxd.testing.fakes.clock import FakeClock, InlineExecutor
from outboxd.testing.fakes.faults import Faults
from outboxd.testing.fakes.files import FakeFiles
from tests.unit.letters.doubles import ListLogger


class FakeTopics:
    """`KafkaConnection`: topics with so many partitions, whose logs are in ``logs``."""

    def __init__(self, partitions: int = 3, limit: int | None = None) -> None:
        self.faults = Faults()
        self.partitions = partitions
        self.limit = limit
        self.refuses_above: int | None = limit
        self.missing: set[str] = set()
        self.logs: defaultdict[str, list[RawRecord]] = defaultdict(list)

    async def send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int | None = None
    ) -> Position:
        def effect() -> Position:
            if topic in self.missing:
                raise TopicUnknown(f"topic {topic} does not exist", topic=topic)
            size = len(key or b"") + len(value or b"") + sum(len(n.encode()) + len(v or b"") for n, v in headers)
            if self.refuses_above is not None and size > self.refuses_above:
                raise RecordRejected(f"{size} bytes are more than the topic takes")
            partition = sum(key or b"") % self.partitions
            offset = sum(record.partition == partition for record in self.logs[topic])
            self.append(topic, partition, offset, key=key, value=value, headers=headers, timestamp=timestamp)
            return Position(topic, partition, offset)

        return await self.faults.around("send", effect)

    def append(self, topic: str, partition: int, offset: int, **record: Any) -> None:
        timestamp = record.pop("timestamp", None)
        self.logs[topic].append(
            RawRecord(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp=1_800_000_000_000 if timestamp is None else timestamp,
                timestamp_type=TimestampType.CREATE_TIME,
                **record,
            )
        )

    async def read(self, topic: str, offsets: Mapping[int, int], limit: int) -> Sequence[RawRecord]:
        def effect() -> Sequence[RawRecord]:
            if topic not in self.logs:
                raise TopicUnknown(f"topic {topic} does not exist", topic=topic)
            wanted = [record for record in self.logs[topic] if record.offset >= offsets.get(record.partition, 0)]
            return wanted[:limit]

        return await self.faults.around("read", effect)

    async def max_message_bytes(self, topic: str) -> int | None:
        return await self.faults.around("max_message_bytes", lambda: self.limit)


class Connections:
    def __init__(self, **connections: object) -> None:
        self._connections = connections

    def __getitem__(self, name: str) -> object:
        return self._connections[name]

    postgres = kafka = home = __getitem__


def a_context(
    connections: object = None, files: Files | None = None, *, name: str = "sink", topics: Sequence[str] = ("src",)
) -> PluginContext:
    return PluginContext(
        name=name,
        pipeline="s",
        instance="pod-0",
        logger=ListLogger(),
        meter=NoOpMeter("test"),
        clock=FakeClock(),
        connections=connections,  # type: ignore[arg-type]
        executor=InlineExecutor(),
        files=FakeFiles() if files is None else files,
        is_stopping=lambda: False,
        group="g",
        topics=topics,
    )


def a_letter(offset: int = 0, **changes: object) -> Letter:
    fields: dict[str, object] = {
        "id": UUID(int=offset + 1),
        "pipeline": "s",
        "group": "g",
        "handler": "org.apache.kafka.connect.json.JsonConverter",
        "topic": "src",
        "partition": 1,
        "offset": offset,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": TimestampType.LOG_APPEND_TIME,
        "key": bytes.fromhex("83ff6b"),
        "value": b"{not json",
        "headers": Headers((("app", b"1"), ("app", b"2"), ("bin", b"\xc3("), ("nul", None))),
        "stage": Stage.DECODE,
        "error_class": "org.apache.kafka.connect.errors.DataException",
        "error_root_class": "builtins.ValueError",
        "error_message": "Converting byte[] to Kafka Connect data failed due to serialization error: ",
        "error_traceback": "org.apache.kafka.connect.errors.DataException: ...\n\tat ...\n",
        "attempts": 1,
        "first_failed_at": datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=offset),
        "last_failed_at": datetime(2026, 3, 1, tzinfo=UTC) + timedelta(seconds=offset),
        "rule": "built in: stage decode",
        "fingerprint": "f" * 32,
    }
    return Letter(**(fields | changes))  # type: ignore[arg-type]


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_name = st.one_of(
    _text,
    st.sampled_from(["outboxd-id", "outboxd-letter", "outboxd-letter-id", "traceparent", "app", ""]),
    st.sampled_from(["__connect.errors.topic", "__connect.errors.exception.message", "kafka_dlt-exception"]),
    st.binary(max_size=8).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
)
_bytes = st.one_of(st.none(), st.binary(max_size=60))
_times = st.integers(0, 10**15).map(
    lambda microseconds: (
        datetime(1995, 1, 1, tzinfo=timezone(timedelta(hours=2))) + timedelta(microseconds=microseconds)
    )
)

letters = st.builds(
    Letter,
    id=st.uuids(),
    pipeline=_text,
    group=st.one_of(st.none(), _text),
    handler=_text,
    topic=_text,
    partition=st.integers(-1, 2**31 - 1),
    offset=st.integers(-1, 2**63 - 1),
    timestamp=st.integers(-1, 2**53),
    timestamp_type=st.sampled_from(TimestampType),
    key=_bytes,
    value=_bytes,
    headers=st.lists(st.tuples(_name, _bytes), max_size=8).map(Headers),
    stage=st.sampled_from(Stage),
    error_class=_text,
    error_root_class=_text,
    error_message=_text,
    error_traceback=_text,
    attempts=st.integers(0, 10_000),
    first_failed_at=_times,
    last_failed_at=_times,
    rule=_text,
    fingerprint=_text,
    traceparent=st.one_of(st.none(), _text),
    outbox_id=st.one_of(st.none(), _text),
)
"""Letters whose texts are sanitised, as all are; everything else is arbitrary."""

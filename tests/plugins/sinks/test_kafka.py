from __future__ import annotations

import asyncio
import json

import pytest
from pydantic import ValidationError

from outboxd.api import Headers, Letter, ReadableSink, Refused, Sink, Stored
from outboxd.errors import BrokerUnreachable, OffsetOutOfRange, SendOutcomeUnknown, SinkUnavailable, TopicDenied
from outboxd.testing.fakes.clock import virtual_time
from outboxd.testing.fakes.faults import Delayed, Raised
from outboxd_plugins.sinks.kafka import KafkaSink, KafkaSinkSettings
from tests.plugins.sinks.doubles import Connections, FakeTopics, a_context, a_letter


def a_sink(topics: FakeTopics, *, consumes: tuple[str, ...] = ("src",), **settings: object) -> KafkaSink:
    model = KafkaSinkSettings.model_validate({"connection": "main", **settings})
    return KafkaSink(model, a_context(Connections(main=topics), topics=consumes))


@virtual_time
async def test_letters_are_in_the_topic_of_their_source() -> None:
    topics = FakeTopics()
    sink = a_sink(topics)
    assert isinstance(sink, Sink)
    assert isinstance(sink, ReadableSink)
    await sink.open()
    assert await sink.write([a_letter(1), a_letter(2, topic="other")]) == [
        Stored(detail="src.dlq-1@0"),
        Stored(detail="other.dlq-1@0"),
    ]
    assert topics.logs["src.dlq"][0].value == b"{not json"


@pytest.mark.parametrize(
    ("template", "expected"),
    [("{topic}.dlq", "src.dlq"), ("dead.{pipeline}.{group}", "dead.s.g"), ("letters", "letters")],
)
@virtual_time
async def test_the_template_names_the_topic(template: str, expected: str) -> None:
    topics = FakeTopics()
    await a_sink(topics, topic=template).write([a_letter()])
    assert set(topics.logs) == {expected}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"topic": "{topics}.dlq"}, "{topics} is not known here"),
        ({"topic": ""}, "at least 1 character"),
        ({"dialects": ["spring"]}, "not available yet"),
        ({"dialects": ["other"]}, "connect"),
        ({"partition": 3}, "Extra inputs"),
    ],
)
def test_settings_that_cannot_be_carried_out_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        KafkaSinkSettings.model_validate({"connection": "main", **settings})


@pytest.mark.fixes("B044")
@virtual_time
async def test_a_topic_with_fewer_partitions_takes_letters_of_every_partition() -> None:
    topics = FakeTopics(partitions=3)
    sink = a_sink(topics)
    letters = [a_letter(number, partition=number, key=b"%d" % number) for number in range(12)]
    assert all(isinstance(answer, Stored) for answer in await sink.write(letters))
    records = topics.logs["src.dlq"]
    assert {record.partition for record in records} <= {0, 1, 2}
    assert sorted(int(record.headers.get("__connect.errors.partition") or b"") for record in records) == list(range(12))


@virtual_time
async def test_letters_of_one_key_keep_their_order() -> None:
    topics = FakeTopics(partitions=1)
    delays = iter([0.5, 0.0, 0.3, 0.0, 0.2, 0.0])
    topics.faults.choose = lambda call: Delayed(before=next(delays)) if call == "send" else None
    await a_sink(topics).write([a_letter(number, key=b"k%d" % (number % 2)) for number in range(6)])
    offsets = [int(record.headers.get("__connect.errors.offset") or b"") for record in topics.logs["src.dlq"]]
    assert [offset for offset in offsets if offset % 2 == 0] == [0, 2, 4]
    assert [offset for offset in offsets if offset % 2] == [1, 3, 5]


@pytest.mark.fixes("B042")
@virtual_time
async def test_a_record_that_the_topic_refuses_is_refused_alone() -> None:
    topics = FakeTopics(limit=5_000)
    answers = await a_sink(topics).write([a_letter(1), a_letter(2, value=b"x" * 10_000), a_letter(3)])
    assert [isinstance(answer, Stored) for answer in answers] == [True, False, True]
    assert isinstance(answers[1], Refused)
    assert "src.dlq" in answers[1].reason


@pytest.mark.fixes("B042")
@virtual_time
async def test_our_headers_are_cut_before_a_record_is_refused() -> None:
    topics = FakeTopics(limit=12_000)
    [answer] = await a_sink(topics).write([a_letter(value=b"x" * 8_000, error_traceback="t" * 30_000)])
    assert isinstance(answer, Stored)


@pytest.mark.parametrize(
    "error",
    [BrokerUnreachable("no broker"), SendOutcomeUnknown("no answer"), TopicDenied("not yours", topic="src.dlq")],
)
@virtual_time
async def test_what_is_no_fault_of_the_letter_makes_the_sink_unavailable(error: Exception) -> None:
    topics = FakeTopics()
    topics.faults.plan("send", None, Raised(error))
    with pytest.raises(SinkUnavailable, match="kafka connection main"):
        await a_sink(topics).write([a_letter(1, key=b"a"), a_letter(2, key=b"b")])
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.fixes("B045")
@virtual_time
async def test_a_missing_topic_makes_the_sink_unavailable_at_once() -> None:
    topics = FakeTopics()
    topics.missing.add("src.dlq")
    with pytest.raises(SinkUnavailable, match="does not exist"):
        await a_sink(topics).write([a_letter()])


@virtual_time
async def test_a_bug_is_not_taken_for_an_outage() -> None:
    topics = FakeTopics()
    topics.faults.plan("send", Raised(RuntimeError("a bug")))
    with pytest.raises(ExceptionGroup):
        await a_sink(topics).write([a_letter()])


async def read_all(sink: KafkaSink, limit: int = 100, position: str | None = None) -> tuple[list[Letter], str]:
    letters: list[Letter] = []
    while True:
        page, following = await sink.read(position, limit)
        letters += page
        if following == position:
            return letters, following
        position = following


@virtual_time
async def test_letters_are_read_back_from_where_the_last_read_ended_also_after_a_restart() -> None:
    topics = FakeTopics()
    written = [a_letter(number, key=b"%d" % number) for number in range(10)]
    await a_sink(topics).write(written)
    letters, position = await read_all(a_sink(topics), limit=3)
    assert sorted(letters, key=lambda letter: letter.offset) == written
    await a_sink(topics).write([a_letter(10)])
    assert (await a_sink(topics).read(position, 100))[0] == [a_letter(10)]
    assert json.loads(position).keys() == {"src.dlq"}


@virtual_time
async def test_the_topics_of_all_sources_are_read_in_turn() -> None:
    topics = FakeTopics()
    await a_sink(topics).write([a_letter(number) for number in range(50)] + [a_letter(99, topic="zzz")])
    sink = a_sink(topics, consumes=("src", "zzz", "never-written"))
    first, position = await sink.read(None, 10)
    second, _ = await sink.read(position, 10)
    assert a_letter(99, topic="zzz") in [*first, *second], "a long topic does not hide a short one"


@pytest.mark.fixes("B043")
@virtual_time
async def test_foreign_and_malformed_records_are_passed_over() -> None:
    topics = FakeTopics()
    topics.append("src.dlq", 0, 0, key=b"k", value=b"v")
    topics.append("src.dlq", 0, 1, key=b"k", value=b"v", headers=Headers((("outboxd-letter", b"{"),)))
    await a_sink(topics).write([a_letter(1)])
    letters, position = await a_sink(topics).read(None, 100)
    assert letters == [a_letter(1)]
    assert json.loads(position) == {"src.dlq": {"0": 2, "1": 1}}


@pytest.mark.parametrize("position", [None, "", "no json", "[1]", '{"src.dlq": 5}', '{"src.dlq": {"a": "b"}}'])
@virtual_time
async def test_a_position_that_is_none_of_ours_means_the_start(position: str | None) -> None:
    topics = FakeTopics()
    await a_sink(topics).write([a_letter(1)])
    assert (await a_sink(topics).read(position, 100))[0] == [a_letter(1)]


@virtual_time
async def test_a_position_outside_the_log_means_its_start() -> None:
    topics = FakeTopics()
    await a_sink(topics).write([a_letter(1)])
    topics.faults.plan("read", Raised(OffsetOutOfRange("offset 500 is not in the log")))
    letters, position = await a_sink(topics).read('{"src.dlq": {"1": 500}}', 100)
    assert letters == [a_letter(1)]
    assert json.loads(position) == {"src.dlq": {"1": 1}}


@virtual_time
async def test_reading_while_the_broker_is_away_says_so() -> None:
    topics = FakeTopics()
    topics.faults.plan("read", Raised(BrokerUnreachable("no broker")))
    with pytest.raises(SinkUnavailable):
        await a_sink(topics).read(None, 10)

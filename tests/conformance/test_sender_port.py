"""What the shared sender promises for single records: a position or an error each, and nobody at fault for another."""

from __future__ import annotations

import asyncio
import os

import pytest

from outboxd.errors import OutboxdError, RecordRejected, SendOutcomeUnknown, TopicUnknown
from outboxd.records import NO_HEADERS, Headers, Position
from tests.conformance.kafka_world import World, breaks
from tests.conformance.telling import conforms

pytest_plugins = ["tests.conformance.kafka_stages"]


@conforms
async def test_a_record_is_written_byte_for_byte_to_the_partition_of_its_key(kafka: World) -> None:
    topic = await kafka.topic(6)
    sender = kafka.sender()
    headers = Headers([("a", b"1"), ("a", None), ("", b"\xff")])
    sent = await sender.send(topic, key=b"a", value=b"\xff\x00", headers=headers, timestamp=1_700_000_000_123)
    assert sent == Position(topic, 4, 0)
    [record] = await kafka.log(topic, 4)
    assert (record.key, record.value, record.headers) == (b"a", b"\xff\x00", headers)
    assert record.timestamp == 1_700_000_000_123
    assert (await sender.send(topic, key=b"", value=b"empty key", headers=NO_HEADERS)).partition == 3


@conforms
async def test_records_without_a_key_are_spread(kafka: World) -> None:
    topic = await kafka.topic(3)
    sender = kafka.sender()
    sent = [await sender.send(topic, key=None, value=None, headers=NO_HEADERS) for _ in range(6)]
    assert sorted(position.partition for position in sent) == [0, 0, 1, 1, 2, 2]


@conforms
async def test_records_that_are_sent_at_once_keep_their_order_and_only_the_bad_one_is_refused(kafka: World) -> None:
    topic = await kafka.topic(max_message_bytes=20_000)
    sender = kafka.sender()
    await sender.send(topic, key=b"k", value=b"first", headers=NO_HEADERS)
    values = [b"%d" % number for number in range(200)]
    values.insert(100, os.urandom(25_000))
    sends = [sender.send(topic, key=b"k", value=value, headers=NO_HEADERS) for value in values]
    answers = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(answers.pop(100), RecordRejected)
    assert answers == [Position(topic, 0, offset) for offset in range(1, 201)]
    assert await kafka.values(topic) == [b"first", *(b"%d" % number for number in range(200))]


@conforms
async def test_what_the_broker_refuses_does_not_stand_in_the_way_of_the_next_record(kafka: World) -> None:
    topic = await kafka.topic(after=3_600_000)
    sender = kafka.sender()
    await sender.send(topic, key=b"k", value=b"0", headers=NO_HEADERS)
    for _ in range(2):
        with pytest.raises(RecordRejected):
            await sender.send(topic, key=b"k", value=b"future", headers=NO_HEADERS, timestamp=4_000_000_000_000)
        await sender.send(topic, key=b"k", value=b"1", headers=NO_HEADERS)
    assert await kafka.values(topic) == [b"0", b"1", b"1"]


@conforms
async def test_a_header_name_that_is_no_text_is_a_record_error(kafka: World) -> None:
    topic = await kafka.topic()
    sender = kafka.sender()
    with pytest.raises(RecordRejected):
        await sender.send(topic, key=b"k", value=b"v", headers=Headers([("\ud800", b"")]))
    assert (await sender.send(topic, key=b"k", value=b"v", headers=NO_HEADERS)).offset == 0


@conforms
async def test_an_unknown_topic_is_told_quickly_and_not_made(kafka: World) -> None:
    topic = await kafka.topic()
    sender = kafka.sender()
    async with asyncio.timeout(5):
        for _ in range(2):
            with pytest.raises(TopicUnknown):
                await sender.send(f"{topic}-missing", key=None, value=b"", headers=NO_HEADERS)
    with pytest.raises(TopicUnknown):
        await kafka.admin().topic(f"{topic}-missing")
    assert (await sender.send(topic, key=None, value=b"", headers=NO_HEADERS)).offset == 0


@breaks
@conforms
async def test_close_sends_what_waits_and_takes_nothing_more(kafka: World) -> None:
    topic = await kafka.topic()
    sender = kafka.sender()
    await sender.send(topic, key=b"k", value=b"0", headers=NO_HEADERS)
    kafka.freeze()
    first = asyncio.create_task(sender.send(topic, key=b"k", value=b"on its way", headers=NO_HEADERS))
    await asyncio.sleep(0.3)
    second = asyncio.create_task(sender.send(topic, key=b"k", value=b"waiting", headers=NO_HEADERS))
    await asyncio.sleep(0.1)
    closing = asyncio.create_task(sender.close())
    await asyncio.sleep(0.1)
    with pytest.raises(OutboxdError, match="closed"):
        await sender.send(topic, key=b"k", value=b"too late", headers=NO_HEADERS)
    kafka.thaw()
    await closing
    assert [(await first).offset, (await second).offset] == [1, 2]
    assert await kafka.values(topic) == [b"0", b"on its way", b"waiting"]


@breaks
@conforms
async def test_close_ends_although_nothing_is_answered_and_tells_who_waits(kafka: World) -> None:
    topic = await kafka.topic()
    sender = kafka.sender(deadline=30)
    await sender.send(topic, key=b"k", value=b"0", headers=NO_HEADERS)
    kafka.freeze()
    sending = asyncio.create_task(sender.send(topic, key=b"k", value=b"1", headers=NO_HEADERS))
    await asyncio.sleep(0.1)
    async with asyncio.timeout(10):
        await sender.close()
        with pytest.raises(SendOutcomeUnknown):
            await sending
    kafka.thaw()


@breaks
@conforms
async def test_a_frozen_broker_makes_the_outcome_unknown_and_the_sender_goes_on_afterwards(kafka: World) -> None:
    topic = await kafka.topic()
    sender = kafka.sender(deadline=1)
    await sender.send(topic, key=b"k", value=b"0", headers=NO_HEADERS)
    kafka.freeze()
    async with asyncio.timeout(10):
        with pytest.raises(SendOutcomeUnknown):
            await sender.send(topic, key=b"k", value=b"1", headers=NO_HEADERS)
    kafka.thaw()
    await sender.send(topic, key=b"k", value=b"2", headers=NO_HEADERS)
    values = await kafka.values(topic)
    assert [value for value in values if value != b"1"] == [b"0", b"2"]
    assert values.count(b"1") <= 1


@breaks
@conforms
async def test_a_caller_that_goes_away_takes_no_other_record_with_it(kafka: World) -> None:
    topic = await kafka.topic()
    sender = kafka.sender()
    await sender.send(topic, key=b"k", value=b"0", headers=NO_HEADERS)
    kafka.freeze()
    sends = [
        asyncio.create_task(sender.send(topic, key=b"k", value=b"%d" % number, headers=NO_HEADERS))
        for number in range(1, 4)
    ]
    await asyncio.sleep(0.3)
    sends[0].cancel()
    sends[1].cancel()
    await asyncio.sleep(0.1)
    kafka.thaw()
    last = await sends[2]
    values = await kafka.values(topic)
    assert values[last.offset] == b"3"
    assert [value for value in values if value in {b"0", b"3"}] == [b"0", b"3"]

"""What a relay's producer promises: atomic batches, epochs, fences, and outcomes that are unknown."""

from __future__ import annotations

import asyncio
import os

import pytest

from outboxd.errors import ProducerFenced, ProducerWedged, RecordRejected, SendOutcomeUnknown, TopicUnknown
from outboxd.ports import OutboundRecord
from outboxd.records import NO_HEADERS, Headers, TopicPartition
from tests.conformance.kafka_world import World, an_id, breaks, others, rows
from tests.conformance.telling import conforms

pytest_plugins = ["tests.conformance.kafka_stages"]

HOUR = 3_600_000


@conforms
async def test_batches_are_written_whole_in_order_and_byte_for_byte(kafka: World) -> None:
    topic = await kafka.topic()
    producer = await kafka.opened()
    partition = TopicPartition(topic, 0)
    headers = Headers([("a", b"1"), ("a", b"2"), ("nul", None), ("bin", b"\xc3\x28"), ("", b"")])
    sent = [
        OutboundRecord(key=b"\x83\xff", value=b"", headers=headers, timestamp=1_700_000_000_123),
        OutboundRecord(key=b"", value=None, headers=NO_HEADERS, timestamp=0),
        OutboundRecord(key=None, value=b"v", headers=NO_HEADERS, timestamp=None),
    ]
    assert await producer.send(partition, producer.build(sent)) == 0
    assert await producer.send(partition, producer.build(rows(b"next"))) == 3
    assert await producer.end_offset(partition) == 4
    first, second, third, fourth = await kafka.log(topic)
    assert (first.key, first.value, first.headers, first.timestamp) == (b"\x83\xff", b"", headers, 1_700_000_000_123)
    assert (second.key, second.value, second.timestamp) == (b"", None, 0)
    assert (third.key, third.value) == (None, b"v")
    assert third.timestamp > 1_700_000_000_123, "now, where the record has no time"
    assert (fourth.value, fourth.offset) == (b"next", 3)


@conforms
async def test_many_batches_in_several_partitions_stay_in_order(kafka: World) -> None:
    topic = await kafka.topic(3)
    producer = await kafka.opened()

    async def feed(number: int) -> list[int]:
        offsets = []
        for batch in range(30):
            built = producer.build(rows(*(b"%d" % (batch * 4 + index) for index in range(4))))
            offsets.append(await producer.send(TopicPartition(topic, number), built))
        return offsets

    assert await asyncio.gather(*(feed(number) for number in range(3))) == [list(range(0, 120, 4))] * 3
    for number in range(3):
        assert await kafka.values(topic, number) == [b"%d" % index for index in range(120)]


@pytest.mark.fixes("B020")
@conforms
async def test_the_partition_of_a_key_is_the_java_clients(kafka: World) -> None:
    producer = await kafka.opened()
    info = await producer.topic(await kafka.topic(6))
    assert producer.partition_for(info, b"a", 0) == 4
    assert producer.partition_for(info, b"", 5) == 3  # an empty key is a key
    assert [producer.partition_for(info, None, spread) for spread in (0, 5, 6)] == [0, 5, 0]


# -- epochs and fences


@conforms
async def test_an_older_producer_is_refused_everywhere_once_a_newer_one_has_fenced(kafka: World) -> None:
    topic = await kafka.topic(3)
    partitions = [TopicPartition(topic, number) for number in range(3)]
    identity = an_id()
    older, newer = await kafka.opened(identity), kafka.producer(identity)
    await older.send(partitions[0], older.build(rows(b"old")))
    assert await newer.open(partitions) == frozenset()
    for partition in partitions:  # the newer one has written to none of them
        with pytest.raises(ProducerFenced):
            await older.send(partition, older.build(rows(b"stale")))
    await newer.send(partitions[0], newer.build(rows(b"new")))
    assert await kafka.values(topic, 0) == [b"old", b"new"]
    assert await kafka.values(topic, 1) == []


@conforms
async def test_without_a_fence_an_older_producer_is_refused_only_where_the_newer_has_written(kafka: World) -> None:
    topic = await kafka.topic(2)
    written, untouched = (TopicPartition(topic, number) for number in range(2))
    identity = an_id()
    older, newer = await kafka.opened(identity), await kafka.opened(identity)
    await newer.send(written, newer.build(rows(b"new")))
    with pytest.raises(ProducerFenced):
        await older.send(written, older.build(rows(b"stale")))
    await older.send(untouched, older.build(rows(b"stale, and in")))
    assert await kafka.values(topic, 0) == [b"new"]
    assert await kafka.values(topic, 1) == [b"stale, and in"]


@conforms
async def test_partitions_that_cannot_be_fenced_are_given_back_and_the_others_are_fenced(kafka: World) -> None:
    topic = await kafka.topic()
    there, missing = TopicPartition(topic, 0), TopicPartition(f"{topic}-missing", 0)
    beyond = TopicPartition(topic, 7)
    identity = an_id()
    older, newer = await kafka.opened(identity), kafka.producer(identity)
    assert await newer.open([there, missing, beyond]) == {missing, beyond}
    with pytest.raises(ProducerFenced):
        await older.send(there, older.build(rows(b"stale")))


@conforms
async def test_a_fence_leaves_a_marker_which_takes_an_offset(kafka: World) -> None:
    partition = TopicPartition(await kafka.topic(), 0)
    producer = await kafka.opened()
    await producer.send(partition, producer.build(rows(b"0", b"1")))
    await kafka.mark(partition)
    assert await producer.end_offset(partition) == 3
    assert await producer.send(partition, producer.build(rows(b"3"))) == 3
    assert [record.offset for record in await kafka.log(partition.topic)] == [0, 1, 3]


@conforms
async def test_every_producer_object_has_an_epoch_of_its_own(kafka: World) -> None:
    partition = TopicPartition(await kafka.topic(), 0)
    identity = an_id()
    for number in range(3):
        producer = await kafka.opened(identity)
        assert await producer.send(partition, producer.build(rows(b"%d" % number))) == number
        await producer.abandon()
    assert await kafka.values(partition.topic) == [b"0", b"1", b"2"]


@conforms
async def test_an_id_and_epoch_that_are_used_twice_are_acknowledged_and_nothing_is_written(kafka: World) -> None:
    # Why every object needs an epoch of its own: the broker takes the second object's sequence 0 for a repeat.
    partition = TopicPartition(await kafka.topic(), 0)
    first, second = await kafka.twins()
    await first.send(partition, first.build(rows(b"written")))
    assert await second.send(partition, second.build(rows(b"lost!!!"))) == 0
    assert await kafka.values(partition.topic) == [b"written"]


# -- what is refused


@conforms
async def test_an_unknown_topic_is_told_quickly_and_not_made(kafka: World) -> None:
    producer = await kafka.opened()
    name = f"{await kafka.topic()}-missing"
    async with asyncio.timeout(5):
        with pytest.raises(TopicUnknown, match=name):
            await producer.topic(name)
        with pytest.raises(TopicUnknown):
            await producer.send(TopicPartition(name, 0), producer.build(rows(b"v")))
        with pytest.raises(TopicUnknown):
            await kafka.admin().topic(name)


@conforms
async def test_an_unknown_partition_is_told_and_the_producer_goes_on(kafka: World) -> None:
    topic = await kafka.topic()
    producer = await kafka.opened()
    with pytest.raises(TopicUnknown):
        await producer.send(TopicPartition(topic, 1), producer.build(rows(b"v")))
    assert await producer.send(TopicPartition(topic, 0), producer.build(rows(b"v"))) == 0


@conforms
async def test_a_record_that_is_too_large_wedges_its_partition_and_a_new_producer_cures_it(kafka: World) -> None:
    small = TopicPartition(await kafka.topic(max_message_bytes=2_000), 0)
    other = TopicPartition(await kafka.topic(), 0)
    identity = an_id()
    producer = await kafka.opened(identity)
    await producer.send(small, producer.build(rows(b"good")))
    with pytest.raises(RecordRejected):
        await producer.send(small, producer.build(rows(os.urandom(5_000))))
    for _ in range(2):
        with pytest.raises(ProducerWedged):
            await producer.send(small, producer.build(rows(b"behind")))
    assert await producer.send(other, producer.build(rows(b"fine"))) == 0
    cured = kafka.producer(identity)
    await cured.open([small])
    await cured.send(small, cured.build(rows(b"behind")))
    assert await kafka.values(small.topic) == [b"good", b"behind"]


@conforms
async def test_a_refused_batch_wedges_its_partition_also_when_it_was_the_first(kafka: World) -> None:
    topic = await kafka.topic(max_message_bytes=2_000)
    partition = TopicPartition(topic, 0)
    producer = await kafka.opened()
    with pytest.raises(RecordRejected):
        await producer.send(partition, producer.build(rows(os.urandom(5_000))))
    with pytest.raises(ProducerWedged):
        await producer.send(partition, producer.build(rows(b"behind")))
    assert await kafka.values(topic) == []


@breaks
@conforms
async def test_a_batch_that_was_queued_behind_a_refused_one_does_not_overtake_it(kafka: World) -> None:
    topic = await kafka.topic(max_message_bytes=2_000)
    partition = TopicPartition(topic, 0)
    producer = await kafka.opened()
    await producer.send(partition, producer.build(rows(b"good")))
    kafka.freeze()
    bad = asyncio.create_task(producer.send(partition, producer.build(rows(os.urandom(5_000)))))
    await asyncio.sleep(0.2)
    behind = asyncio.create_task(producer.send(partition, producer.build(rows(b"behind"))))
    await asyncio.sleep(0.2)
    kafka.thaw()
    with pytest.raises(RecordRejected):
        await bad
    with pytest.raises(ProducerWedged):
        await behind
    assert await kafka.values(topic) == [b"good"]


@conforms
async def test_a_refused_batch_is_not_written_in_part(kafka: World) -> None:
    topic = await kafka.topic(after=HOUR)
    producer = await kafka.opened()
    batch = producer.build([*rows(b"good"), *rows(b"from the future", timestamp=4_000_000_000_000), *rows(b"good")])
    assert batch.count == 3
    with pytest.raises(RecordRejected):
        await producer.send(TopicPartition(topic, 0), batch)
    assert await kafka.values(topic) == []


@conforms
async def test_a_timestamp_that_is_too_old_for_the_topic_is_refused(kafka: World) -> None:
    topic = await kafka.topic(before=HOUR)
    producer = await kafka.opened()
    info = await producer.topic(topic)
    assert info.timestamp_before_max == HOUR
    with pytest.raises(RecordRejected):
        await producer.send(TopicPartition(topic, 0), producer.build(rows(b"old", timestamp=1_000_000_000_000)))


@conforms
async def test_a_header_name_that_is_no_text_is_a_record_error_and_ends_the_batch_before_it(kafka: World) -> None:
    producer = await kafka.opened()
    bad = OutboundRecord(key=None, value=None, headers=Headers([("\ud800", b"")]))
    with pytest.raises(RecordRejected):
        producer.build([bad])
    assert producer.build([*rows(b"good"), bad]).count == 1


@conforms
async def test_a_batch_takes_as_many_records_as_fit_and_always_the_first(kafka: World) -> None:
    producer = await kafka.opened()
    assert producer.build(rows(*[b"x" * 50_000] * 30)).count == 19
    assert producer.build(rows(*[b"x" * 100] * 20_000, key=b"key", timestamp=5)).count == 8_843
    assert producer.build(rows(b"x" * 2_000_000, b"y")).count == 1
    longer = [
        OutboundRecord(key=None, value=b"v", headers=Headers([("name", b"x" * 70), ("no", None)]), timestamp=5)
        for _ in range(20_000)
    ]
    assert producer.build(longer).count == 10_958


# -- what an object is good for


@conforms
async def test_a_batch_is_sent_once_and_its_producer_is_of_no_use_after_a_second_time(kafka: World) -> None:
    partition = TopicPartition(await kafka.topic(), 0)
    producer = await kafka.opened(deadline=5)
    batch = producer.build(rows(b"once"))
    await producer.send(partition, batch)
    with pytest.raises(ProducerWedged):
        await producer.send(partition, batch)
    with pytest.raises(ProducerWedged):
        await producer.send(partition, producer.build(rows(b"behind")))
    assert await kafka.values(partition.topic) == [b"once"]


@conforms
async def test_a_producer_that_is_not_open_sends_nothing(kafka: World) -> None:
    partition = TopicPartition(await kafka.topic(), 0)
    unopened, opened, closed = kafka.producer(), await kafka.opened(), await kafka.opened()
    batch, other = opened.build(rows(b"v")), closed.build(rows(b"v"))
    await opened.abandon()
    await closed.close()
    await closed.close()
    for producer, built in ((unopened, batch), (opened, batch), (closed, other)):
        with pytest.raises(ProducerWedged):
            await producer.send(partition, built)
        with pytest.raises(ProducerWedged):
            producer.build(rows(b"v"))
        with pytest.raises(ProducerWedged):
            await producer.end_offset(partition)
    assert await kafka.values(partition.topic) == []


@conforms
async def test_a_batch_for_a_topic_that_went_away_is_given_up_in_time_and_holds_no_other_topic_up(kafka: World) -> None:
    gone, other = TopicPartition(await kafka.topic(), 0), TopicPartition(await kafka.topic(), 0)
    identity = an_id()
    producer = await kafka.opened(identity, deadline=15)
    await producer.send(gone, producer.build(rows(b"old")))
    await kafka.delete_topic(gone.topic)
    sending = asyncio.create_task(producer.send(gone, producer.build(rows(b"nowhere"))))
    assert await producer.send(other, producer.build(rows(b"fine"))) == 0
    with pytest.raises((TopicUnknown, SendOutcomeUnknown)):
        await sending
    await kafka.topic(name=gone.topic)
    again = await kafka.opened(identity)
    assert await again.send(gone, again.build(rows(b"new"))) == 0
    assert await kafka.values(gone.topic) == [b"new"]


# -- brokers that do not answer


@pytest.mark.fixes("B007")
@pytest.mark.fixes("B018")
@breaks
@conforms
async def test_a_frozen_broker_makes_the_outcome_unknown_and_holds_nobody_up(kafka: World) -> None:
    partition = TopicPartition(await kafka.topic(), 0)
    identity = an_id()
    producer = await kafka.opened(identity, deadline=1)
    await producer.send(partition, producer.build(rows(b"before")))
    kafka.freeze()
    began = asyncio.get_running_loop().time()
    with pytest.raises(SendOutcomeUnknown):
        await producer.send(partition, producer.build(rows(b"unknown")))
    await producer.abandon()
    assert asyncio.get_running_loop().time() - began < 8  # the client alone would wait for ever
    assert others() == []
    kafka.thaw()
    after = kafka.producer(identity)
    await after.open([partition])
    tail = await kafka.values(partition.topic)
    await after.send(partition, after.build(rows(b"after")))
    # What the fence has closed in is final: the batch came before, or it never comes.
    assert tail in ([b"before"], [b"before", b"unknown"])
    await asyncio.sleep(1)
    assert await kafka.values(partition.topic) == [*tail, b"after"]


@breaks
@conforms
async def test_a_batch_on_its_way_is_delivered_after_its_callers_deadline_and_once(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    producer = await kafka.opened(deadline=1)
    await producer.send(partition, producer.build(rows(b"0")))
    kafka.freeze()
    with pytest.raises(SendOutcomeUnknown):
        await producer.send(partition, producer.build(rows(b"1")))
    kafka.thaw()
    assert await producer.send(partition, producer.build(rows(b"2"))) == 2
    assert await kafka.values(topic) == [b"0", b"1", b"2"]


@breaks
@conforms
async def test_a_batch_on_its_way_is_delivered_after_its_caller_was_cancelled(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    producer = await kafka.opened()
    await producer.send(partition, producer.build(rows(b"0")))
    kafka.freeze()
    sending = asyncio.create_task(producer.send(partition, producer.build(rows(b"1"))))
    await asyncio.sleep(0.3)
    sending.cancel()
    await asyncio.wait({sending})
    kafka.thaw()
    assert await producer.send(partition, producer.build(rows(b"2"))) == 2
    assert await kafka.values(topic) == [b"0", b"1", b"2"]


@breaks
@conforms
async def test_to_give_a_producer_up_ends_its_sends_and_nothing_that_was_queued_is_sent(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    producer = await kafka.opened(deadline=20)
    await producer.send(partition, producer.build(rows(b"0")))
    kafka.freeze()
    sends = [asyncio.create_task(producer.send(partition, producer.build(rows(b"1"))))]
    await asyncio.sleep(0.3)
    sends.append(asyncio.create_task(producer.send(partition, producer.build(rows(b"queued")))))
    await asyncio.sleep(0.3)
    await producer.abandon()
    for sending in sends:
        with pytest.raises((SendOutcomeUnknown, ProducerWedged)):
            await sending
    kafka.thaw()
    await asyncio.sleep(1)
    assert b"queued" not in await kafka.values(topic)


@breaks
@conforms
async def test_a_broker_that_was_killed_and_started_again_gets_the_batch_once(kafka: World) -> None:
    topic = await kafka.topic()
    partition = TopicPartition(topic, 0)
    producer = await kafka.opened(deadline=25)
    await producer.send(partition, producer.build(rows(b"0")))
    await kafka.kill()
    sending = asyncio.create_task(producer.send(partition, producer.build(rows(b"1"))))
    await asyncio.sleep(0.3)
    await kafka.restart()
    assert await sending == 1
    assert await producer.send(partition, producer.build(rows(b"2"))) == 2
    assert await kafka.values(topic) == [b"0", b"1", b"2"]

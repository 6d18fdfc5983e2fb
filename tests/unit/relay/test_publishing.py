"""Rows become records: in order, as they are, and marked only after the acknowledgement."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from outboxd.errors import (
    BrokerUnreachable,
    DatabaseUnreachable,
    ProducerWedged,
    SchemaBehind,
    SendOutcomeUnknown,
)
from outboxd.ids import HEADER_ROW_ID, row_identity
from outboxd.records import Headers
from outboxd.testing.fakes.clock import virtual_time
from outboxd.testing.fakes.faults import Delayed, Hung, Late, Lost, Raised
from tests.unit.relay.world import RecordingAction, World, reason, step, stopped


@virtual_time
async def test_rows_are_published_in_the_order_of_their_key_and_then_marked() -> None:
    world = World()
    for number in range(40):
        world.outbox.insert("orders", b"key-%d" % (number % 5), b"%d" % number)
    relay = world.relay()
    task = world.start(relay)
    await world.drained()
    for key in range(5):
        assert world.values(b"key-%d" % key) == [b"%d" % number for number in range(key, 40, 5)]
    await stopped(relay, task)
    world.check()


@pytest.mark.parametrize(
    ("case", "publish_fails", "action_fails", "has_action", "is_marked", "published"),
    [
        ("publishing fails: nothing is marked, the next pass tries again", True, False, True, False, 0),
        ("an action fails: nothing is marked, and no second publish", False, True, True, False, 1),
        ("both succeed: marked", False, False, True, True, 1),
        ("a topic without actions: marked", False, False, False, True, 1),
    ],
)
def test_a_row_is_marked_when_it_was_published_and_its_actions_succeeded(
    *, case: str, publish_fails: bool, action_fails: bool, has_action: bool, is_marked: bool, published: int
) -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        action = RecordingAction(lambda _: action_fails)
        row_id = world.outbox.insert("orders", b"k", b"v")
        relay = world.relay({"orders": [step(action)]} if has_action else None)
        world.broker.is_down = False
        if publish_fails:
            world.broker.faults.choose = lambda call: Raised(BrokerUnreachable("down")) if call == "send" else None
        world.start(relay)
        await asyncio.sleep(5)
        world.check()
        assert (world.outbox.unmarked == []) is is_marked
        assert len(world.records()) == published
        assert len(action.calls) == 0 if publish_fails or not has_action else len(action.calls) >= 1
        # What was wrong is put right: the row gets done, and was published once.
        world.broker.faults.choose = lambda _: None
        action.fails = lambda _: False
        await world.drained()
        assert world.outbox.marked == [row_id]
        assert world.published_ids() == [row_id]

    story()


@pytest.mark.fixes("B019")
@pytest.mark.parametrize("trouble", ["down", "denied", "unknown"])
def test_nothing_is_marked_while_the_broker_has_nothing(trouble: str) -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        for number in range(10):
            world.outbox.insert("orders", b"%d" % number, b"v")
        relay = world.relay(send_deadline=timedelta(seconds=2))
        match trouble:
            case "down":
                world.broker.is_down = True
            case "denied":
                world.broker.deny("orders")
            case _:
                world.broker.faults.choose = lambda call: Hung() if call == "send" else None
        world.start(relay)
        await reason(world, relay, "topic_failed" if trouble == "denied" else "broker_unreachable")
        assert world.outbox.marked == []
        assert len(world.outbox.unmarked) == 10
        world.broker.is_down = False
        world.broker.deny("orders", is_denied=False)
        world.broker.faults.choose = lambda _: None
        await world.drained(120)
        assert sorted(world.published_ids()) == list(range(1, 11))

    story()


@pytest.mark.fixes("B018")
@virtual_time
async def test_a_send_without_answer_ends_at_its_deadline_and_shows_before() -> None:
    world = World()
    world.outbox.insert("orders", b"k", b"v")
    world.broker.faults.plan("send", Hung())
    relay = world.relay()
    task = world.start(relay)
    health = await reason(world, relay, "broker_unreachable", seconds=15)
    assert health.stall is not None
    assert world.outbox.unmarked == [1]
    await world.drained(60)
    assert len(world.broker.producers) > 2, "the producer was replaced"
    assert relay.health().stall is None
    world.broker.faults.choose = lambda call: Hung() if call == "send" else None
    world.outbox.insert("orders", b"k", b"v2")
    await asyncio.sleep(1)
    await stopped(relay, task, seconds=40)


@pytest.mark.fixes("B018")
@virtual_time
async def test_a_producer_that_breaks_its_own_deadline_is_given_up() -> None:
    world = World(shards=1)
    world.outbox.insert("orders", b"k", b"v")
    relay = world.relay(send_deadline=timedelta(seconds=3))
    world.start(relay)
    await world.drained()
    stuck = world.broker.producers[-1]
    stuck.client.deadline = 1e6
    world.broker.faults.plan("send", Hung())
    world.outbox.insert("orders", b"k", b"w")
    await world.drained(30)
    assert stuck.is_done
    assert world.values(b"k") == [b"v", b"w"]


@pytest.mark.fixes("B028")
@virtual_time
async def test_null_json_null_and_empty_are_three_payloads_and_a_tombstone_needs_a_key() -> None:
    world = World()
    world.outbox.insert("orders", b"tomb", None)
    world.outbox.insert("orders", b"json", b"null")
    world.outbox.insert("orders", b"empty", b"")
    world.outbox.insert("orders", b"", b"empty key")
    world.outbox.insert("orders", None, b"no key")
    bad = world.outbox.insert("orders", None, None)
    relay = world.relay()
    world.start(relay)
    await world.until(lambda: world.outbox.unmarked == [bad])
    assert {(record.key, record.value) for record in world.records()} == {
        (b"tomb", None),
        (b"json", b"null"),
        (b"empty", b""),
        (b"", b"empty key"),
        (None, b"no key"),
    }
    health = await reason(world, relay, "keys_blocked")
    assert health.detail["keys_blocked"] == 1
    assert "tombstone" in str(health.stall)


@virtual_time
async def test_the_identity_is_the_last_header_and_the_others_stay_as_they_are() -> None:
    world = World()
    headers = Headers([("traceparent", b"00-1-2-01"), ("a", b"1"), (HEADER_ROW_ID, b"forged"), ("a", None)])
    row_id = world.outbox.insert("orders", b"k", b"v", headers, timestamp=1_700_000_000_000)
    world.start(world.relay())
    await world.drained()
    [record] = world.records()
    identity = row_identity(world.outbox.registration.relay_id, row_id).encode()
    assert record.headers == (("traceparent", b"00-1-2-01"), ("a", b"1"), ("a", None), (HEADER_ROW_ID, identity))
    assert record.timestamp == 1_700_000_000_000


@virtual_time
async def test_a_row_that_commits_late_is_published_although_higher_ids_are_done() -> None:
    world = World()
    late = world.outbox.draw()
    for number in range(20):
        world.outbox.insert("orders", b"%d" % number, b"v")
    world.start(world.relay())
    await world.drained()
    world.outbox.commit(late, "orders", b"late", b"v")
    await world.drained(1)
    assert late in world.published_ids()


@pytest.mark.parametrize(
    "fault",
    [
        Raised(SendOutcomeUnknown("lost before")),
        Lost(SendOutcomeUnknown("lost after")),
        Late(0.5, SendOutcomeUnknown("on its way")),
        Raised(ProducerWedged("sequence")),
        Lost(ProducerWedged("the sender died")),
        Hung(),
        Hung(is_done=True),
        Delayed(1.0, 1.0),
    ],
)
def test_whatever_becomes_of_a_batch_its_rows_reach_the_log_once_and_in_order(fault: object) -> None:
    @virtual_time
    async def story() -> None:
        world = World(shards=1)
        world.broker.create_topic("orders", partitions=1)
        relay = world.relay(send_deadline=timedelta(seconds=5))
        world.start(relay)
        world.outbox.insert("orders", b"k", b"0")
        await world.drained()
        world.broker.faults.plan("send", fault)  # type: ignore[arg-type]
        for number in range(1, 30):
            world.outbox.insert("orders", b"k", b"%d" % number)
            await asyncio.sleep(0.002)
        await world.drained()
        await asyncio.sleep(20)
        assert world.values(b"k") == [b"%d" % number for number in range(30)]
        assert relay.health().detail["possible_duplicates"] == 0

    story()


@pytest.mark.parametrize(
    "fault",
    [Lost(DatabaseUnreachable("answer lost")), Raised(DatabaseUnreachable("refused")), Hung(is_done=True), Hung()],
)
def test_a_mark_without_answer_is_repeated_and_no_row_is_sent_again(fault: object) -> None:
    @virtual_time
    async def story() -> None:
        world = World()
        world.outbox.faults.plan("mark", fault)  # type: ignore[arg-type]
        row_ids = [world.outbox.insert("orders", b"k", b"%d" % number) for number in range(5)]
        relay = world.relay()
        world.start(relay)
        await world.until(lambda: sorted(world.outbox.marked) == row_ids, 90)
        await asyncio.sleep(90)
        assert world.published_ids() == row_ids
        assert world.outbox.faults.calls.count("mark") == 2
        assert relay.health().detail["in_flight"] == 0

    story()


@virtual_time
async def test_a_page_that_was_read_before_rows_were_dropped_is_not_used() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    relay = world.relay()
    world.start(relay)
    world.outbox.insert("orders", b"k", b"0")
    await world.drained()
    # Row 2 is on its way and will fail; a fetch that leaves it out has seen row 3 and is on its way back.
    fail = asyncio.Event()
    arrive = world.broker.append

    def refuse(*batch: Any) -> int:
        fail.set()
        raise SendOutcomeUnknown("no answer")

    world.broker.append = refuse  # type: ignore[method-assign,assignment]
    world.broker.faults.plan("send", Delayed(0.2))
    world.outbox.insert("orders", b"k", b"1")
    await world.until(lambda: world.broker.faults.calls.count("send") == 2)
    world.outbox.faults.choose = lambda call: Delayed(after=0.6) if call == "fetch" else None
    world.outbox.insert("orders", b"k", b"2")
    await fail.wait()
    world.broker.append = arrive  # type: ignore[method-assign]
    await world.drained()
    assert world.values(b"k") == [b"0", b"1", b"2"]
    assert relay.health().detail["shards_owned"] == [0]


@virtual_time
async def test_rows_in_memory_are_bounded_while_the_broker_is_slow() -> None:
    world = World(shards=1)
    for number in range(40):
        world.outbox.insert("orders", b"%d" % number, b"x" * 2_000_000)
    world.broker.create_topic("orders", max_message_bytes=4_000_000)
    world.broker.faults.choose = lambda call: Delayed(1.0) if call == "send" else None
    relay = world.relay()
    world.start(relay)
    peak = 0
    while world.outbox.unmarked:
        held = relay.health().detail["in_flight_bytes"]
        assert isinstance(held, int)
        peak = max(peak, held)
        await asyncio.sleep(0.05)
    assert 8_000_000 < peak < 44_000_000
    assert relay.health().detail["in_flight_bytes"] == 0
    assert relay.health().detail["in_flight"] == 0


@virtual_time
async def test_a_schema_that_is_behind_stalls_the_relay_until_it_is_migrated() -> None:
    world = World()
    world.outbox.insert("orders", b"k", b"v")
    world.outbox.faults.plan("register", *[Raised(SchemaBehind("run outboxd migrate"))] * 5)
    relay = world.relay()
    world.start(relay)
    health = await reason(world, relay, "schema_behind")
    assert not health.is_ready
    await world.drained()
    assert relay.health().is_ready
    assert relay.health().stall is None


@virtual_time
async def test_a_relay_that_is_stopped_before_its_database_answers_ends() -> None:
    world = World()
    world.outbox.faults.choose = lambda call: Raised(DatabaseUnreachable("refused"))
    relay = world.relay()
    task = world.start(relay)
    await reason(world, relay, "database_unreachable")
    await stopped(relay, task, seconds=5)

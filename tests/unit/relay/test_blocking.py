"""Poison rows hold their key, failing topics hold themselves, and everything else flows."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.pipeline.relay import holding as holding_module
from outboxd.pipeline.relay.blocks import Admission, Blocks
from outboxd.records import NO_HEADERS, OutboxRow
from outboxd.testing.fakes.clock import virtual_time
from outboxd.testing.fakes.faults import Hung
from tests.unit.relay.world import World, reason


@virtual_time
async def test_a_row_that_the_broker_refuses_is_found_and_holds_only_its_key() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    world.start(relay := world.relay())
    world.outbox.insert("orders", b"first", b"v")
    await world.drained()
    world.broker.rejects = {b"poison"}
    for number in range(40):
        world.outbox.insert("orders", b"key-%d" % (number % 4), b"poison" if number == 13 else b"%d" % number)
    poison = 15
    behind = list(range(poison + 4, 42, 4))
    await world.until(lambda: world.outbox.unmarked == [poison, *behind])
    health = await reason(world, relay, "keys_blocked")
    assert health.detail["keys_blocked"] == 1
    assert world.values(b"key-1") == [b"1", b"5", b"9"]
    assert world.values(b"key-0") == [b"%d" % number for number in range(0, 40, 4)]
    world.broker.rejects = set()
    await world.drained(120)
    assert world.values(b"key-1") == [b"1", b"5", b"9", b"poison", *(b"%d" % n for n in range(17, 40, 4))]
    assert relay.health().stall is None


@virtual_time
async def test_a_poison_row_that_is_deleted_by_hand_frees_its_key() -> None:
    world = World(shards=1)
    world.broker.rejects = {b"poison"}
    world.outbox.insert("orders", b"k", b"poison")
    world.outbox.insert("orders", b"k", b"after")
    world.outbox.insert("orders", b"alone", b"poison")
    relay = world.relay()
    world.start(relay)
    await reason(world, relay, "keys_blocked")
    await asyncio.sleep(5)
    world.outbox.remove(1)
    world.outbox.remove(3)
    await world.drained(120)
    assert world.values(b"k") == [b"after"]
    await asyncio.sleep(120)
    assert relay.health().stall is None


@pytest.mark.parametrize(
    ("value", "timestamp"), [(b"x" * 2_000, None), (b"v", -5), (b"v", 4_000_000_000_000)], ids=["size", "bc", "future"]
)
def test_what_the_broker_would_refuse_is_not_sent_to_it(value: bytes, timestamp: int | None) -> None:
    @virtual_time
    async def story() -> None:
        world = World(shards=1)
        world.broker.create_topic("orders", max_message_bytes=1_000)
        world.outbox.insert("orders", b"bad", value, timestamp=timestamp)
        for number in range(30):
            world.outbox.insert("orders", b"%d" % number, b"y" * 100)
        relay = world.relay()
        world.start(relay)
        await world.until(lambda: world.outbox.unmarked == [1])
        await reason(world, relay, "keys_blocked")
        assert len(world.broker.producers) == 1
        assert "batch_failed" not in world.logger.events()

    story()


@virtual_time
async def test_a_row_for_a_topic_that_is_not_listed_is_blocked() -> None:
    world = World(topics=("orders", "secret"))
    world.outbox.insert("secret", b"k", b"v")
    world.outbox.insert("orders", b"k", b"v")
    relay = world.relay(listed=["orders"])
    world.start(relay)
    await world.until(lambda: world.outbox.unmarked == [1])
    health = await reason(world, relay, "keys_blocked")
    assert "not listed" in str(health.stall)
    assert world.records("secret") == []


@virtual_time
async def test_a_failing_topic_waits_alone_and_its_rows_stay_in_the_table() -> None:
    world = World(shards=1)
    for number in range(1_500):
        world.outbox.insert("missing", b"%d" % (number % 50), b"%d" % number)
    world.outbox.insert("orders", b"k", b"v")
    relay = world.relay()
    world.start(relay)
    await world.until(lambda: len(world.records()) == 1, 5)
    health = await reason(world, relay, "topic_failed")
    assert health.detail["in_flight"] == 0
    world.broker.create_topic("missing")
    await world.until(lambda: relay.health().stall is None, 70)
    await world.until(lambda: not world.outbox.unmarked, 60)
    for key in range(50):
        assert world.values(b"%d" % key, "missing") == [b"%d" % number for number in range(key, 1_500, 50)]


@virtual_time
async def test_a_topic_that_is_denied_in_the_middle_keeps_its_order() -> None:
    world = World(shards=2, topics=("orders", "other"))
    relay = world.relay()
    world.start(relay)
    for number in range(60):
        if number == 20:
            world.broker.deny("orders")
        if number == 40:
            world.broker.deny("orders", is_denied=False)
        world.outbox.insert("orders", b"%d" % (number % 3), b"%d" % number)
        world.outbox.insert("other", b"k", b"%d" % number)
        await asyncio.sleep(0.2)
    await world.drained(120)
    for key in range(3):
        assert world.values(b"%d" % key) == [b"%d" % number for number in range(key, 60, 3)]
    assert world.values(b"k", "other") == [b"%d" % number for number in range(60)]


@virtual_time
async def test_partitions_that_are_added_do_not_break_a_key_in_two() -> None:
    world = World(shards=1)
    world.start(world.relay())
    for number in range(300):
        if number == 100:
            world.broker.create_topic("orders", partitions=5)
        world.outbox.insert("orders", b"%d" % (number % 7), b"%d" % number)
        await asyncio.sleep(0.5)
    await world.drained(120)
    assert len(world.published_ids()) == 300
    assert len({record.partition for record in world.records()}) > 2, "the new partitions are used"


def test_too_many_blocked_keys_pause_their_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding_module, "_BLOCKS_PER_TOPIC", 10)

    @virtual_time
    async def story() -> None:
        world = World(shards=1, topics=("orders", "other"))
        for _ in range(50):
            world.outbox.insert("orders", None, None)
        world.outbox.insert("other", b"k", b"v")
        relay = world.relay()
        world.start(relay)
        health = await reason(world, relay, "topic_failed")
        assert health.detail["keys_blocked"] == 0
        await world.until(lambda: len(world.records("other")) == 1)

    story()


@virtual_time
async def test_a_failing_topic_whose_rows_are_gone_stalls_nothing() -> None:
    world = World(shards=2)
    relay = world.relay()
    world.start(relay)
    row_id = world.outbox.insert("missing", b"k", b"v")
    await reason(world, relay, "topic_failed")
    world.outbox.remove(row_id)
    await world.until(lambda: relay.health().stall is None, 10)
    world.broker.create_topic("missing")
    world.outbox.insert("missing", b"k", b"w")
    await world.drained(5)
    assert world.values(b"k", "missing") == [b"w"]


@virtual_time
async def test_shards_that_find_a_topic_denied_at_the_same_time_count_as_one_failure() -> None:
    world = World(shards=8)
    world.outbox.faults.plan("mark", Hung())
    for number in range(40):
        world.outbox.insert("orders", b"%d" % number, b"v")
    task = world.start(world.relay())
    await world.until(lambda: len(world.published_ids()) == 40)
    await world.kill(task)
    world.broker.deny("orders")
    relay = world.relay()
    world.start(relay)
    health = await reason(world, relay, "topic_failed")
    assert health.detail["paused_topics"]["orders"]["attempts"] == 1  # type: ignore[index]
    assert health.stall is not None
    assert "give this user its Write ACL" in health.stall.message
    since = health.detail["paused_topics"]["orders"]["since"]  # type: ignore[index]
    await asyncio.sleep(5)
    paused = relay.health().detail["paused_topics"]["orders"]  # type: ignore[index]
    assert (paused["attempts"] > 1, paused["since"]) == (True, since)
    world.broker.deny("orders", is_denied=False)
    await world.drained(10)


@virtual_time
async def test_a_blocked_row_is_shown_with_its_remedy() -> None:
    world = World(shards=1)
    world.outbox.insert("orders", None, None)
    relay = world.relay()
    world.start(relay)
    health = await reason(world, relay, "keys_blocked")
    assert "give the row a key" in str(health.stall)


@pytest.mark.parametrize("end", ["passed", "a later row in its place", "not seen any more", "its topic is paused"])
def test_a_block_lasts_until_no_row_of_its_key_is_in_hand(end: str) -> None:
    in_hand = {("orders", b"k")}
    blocks = Blocks(initial=1, maximum=60, is_in_hand=in_hand.__contains__)
    row, behind = (
        OutboxRow(row_id=row_id, shard=0, topic="orders", key=b"k", value=b"v", headers=NO_HEADERS, timestamp=None)
        for row_id in (1, 2)
    )
    blocks.failed(row, "no", now=0)
    blocks.wake(now=5)
    match end:
        case "passed":
            assert blocks.admit(row) is Admission.PROBE
            assert blocks.passed(row)
        case "a later row in its place":
            assert blocks.admit(behind) is Admission.HELD
        case "not seen any more":
            blocks.vanished(())
        case _:
            blocks.end_topic("orders")
    assert (blocks.may_pass(row), blocks.may_pass(behind)) == (True, False)
    assert blocks.admit(behind) is Admission.HELD
    assert blocks.skipped_keys() == [("orders", b"k")]
    assert blocks.count("orders") == 0
    assert not list(blocks)
    blocks.dropped(behind)
    blocks.wake(now=500)
    assert blocks.admit(behind) is Admission.HELD
    in_hand.clear()
    blocks.left_hand(("orders", b"k"))
    assert blocks.admit(behind) is Admission.FREE
    assert not blocks

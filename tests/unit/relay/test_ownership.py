"""Leases, fencing and recovery: one owner at a time, and a log that is read before anything is sent again."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outboxd.errors import BrokerUnreachable, DatabaseUnreachable, SendOutcomeUnknown
from outboxd.ids import transactional_id
from outboxd.pipeline.relay import shard as shard_module
from outboxd.pipeline.relay.ownership import fair_share
from outboxd.ports import OutboundRecord
from outboxd.records import NO_HEADERS, TopicPartition
from outboxd.testing.fakes.clock import VirtualTimeLoop, virtual_time
from outboxd.testing.fakes.faults import Delayed, Hung, Late, Lost, Raised
from tests.unit.relay.world import World, reason, stopped

LEASE = timedelta(seconds=10)


@pytest.mark.parametrize(("shards", "members", "share"), [(8, 1, 8), (8, 3, 3), (2, 3, 1), (1, 1, 1), (8, 0, 8)])
def test_the_fair_share_is_rounded_up(shards: int, members: int, share: int) -> None:
    assert fair_share(shards, members) == share


@virtual_time
async def test_two_replicas_share_and_a_clean_stop_hands_over_within_a_second() -> None:
    world = World(shards=4)
    first, second = world.relay(), world.relay()
    task = world.start(first)
    await asyncio.sleep(2)
    assert first.health().detail["shards_owned"] == [0, 1, 2, 3]
    world.start(second)
    await world.until(lambda: len(second.health().detail["shards_owned"]) == 2, 5)  # type: ignore[arg-type]
    for number in range(100):
        world.outbox.insert("orders", b"%d" % number, b"v")
    await world.drained()
    await stopped(first, task)
    await asyncio.sleep(1.1)
    assert second.health().detail["shards_owned"] == [0, 1, 2, 3]
    world.outbox.insert("orders", b"k", b"v")
    await world.drained(1)
    assert sorted(world.published_ids()) == list(range(1, 102))
    assert "shard_recovered" not in world.logger.events(), "a clean past needs no fence and no reading"


@virtual_time
async def test_every_producer_object_has_an_epoch_of_its_own() -> None:
    world = World(shards=1)
    world.start(world.relay())
    for fault in (SendOutcomeUnknown("a"), SendOutcomeUnknown("b"), BrokerUnreachable("c")):
        world.broker.faults.plan("send", Raised(fault))
        world.outbox.insert("orders", b"k", b"v")
        await world.drained()
    epochs = [producer.epoch for producer in world.broker.producers]
    assert len(epochs) >= 4
    assert len(set(epochs)) == len(epochs)


@virtual_time
async def test_a_used_epoch_is_acknowledged_without_being_written() -> None:
    """What the double must do as the broker does: the reason why no two producers share an epoch."""
    world = World()
    first = world.broker.relay_producer("x", compression=None, deadline=LEASE)
    await first.open([])
    second = world.broker.relay_producer("x", compression=None, deadline=LEASE)
    second.client.adopt((first.client.producer_id, first.client.epoch))
    partition = TopicPartition("orders", 0)
    record = OutboundRecord(key=b"k", value=b"v", headers=NO_HEADERS)
    assert await first.send(partition, first.build([record])) == 0
    assert await second.send(partition, second.build([record])) == 0
    assert len(world.broker.log("orders", 0)) == 1


@virtual_time
async def test_no_batch_goes_to_a_partition_before_its_end_stands_in_the_notes() -> None:
    world = World(shards=1)
    seen: list[tuple[object, int]] = []
    original = world.broker.append

    def append(producer_id, epoch, partition, sequence, records):  # type: ignore[no-untyped-def]
        seen.append((world.leases.notes(world.lease_name(0)).get(str(partition)), world.broker.end(partition)))
        return original(producer_id, epoch, partition, sequence, records)

    world.broker.append = append  # type: ignore[method-assign]
    for number in range(20):
        world.outbox.insert("orders", b"%d" % number, b"v")
    world.start(world.relay())
    await world.drained()
    assert seen
    assert all(note == end for note, end in seen)


@virtual_time
async def test_after_a_crash_between_publish_and_mark_the_rows_are_found_in_the_log() -> None:
    world = World(shards=2)
    for number in range(30):
        world.outbox.insert("orders", b"%d" % number, b"v%d" % number)
    world.outbox.faults.choose = lambda call: Hung() if call == "mark" else None
    relay = world.relay()
    task = world.start(relay)
    await world.until(lambda: len(world.published_ids()) == 30)
    await world.kill(task)
    assert len(world.outbox.unmarked) == 30
    world.outbox.faults.choose = lambda _: None
    heir = world.relay()
    world.start(heir)
    await world.drained()
    assert sorted(world.published_ids()) == list(range(1, 31)), "nothing was sent again"
    assert heir.health().detail["possible_duplicates"] == 0


@virtual_time
async def test_a_record_in_the_tail_counts_as_the_row_only_with_the_same_content() -> None:
    world = World(shards=1)
    row_id = world.outbox.insert("orders", b"k", b"before the restore")
    world.outbox.faults.choose = lambda call: Hung() if call == "mark" else None
    task = world.start(world.relay())
    await world.until(lambda: len(world.published_ids()) == 1)
    await world.kill(task)
    world.outbox.faults.choose = lambda _: None
    world.outbox.commit(row_id, "orders", b"k", b"after the restore")
    world.start(world.relay())
    await world.drained()
    assert world.values(b"k") == [b"before the restore", b"after the restore"]


@pytest.mark.fixes("B024")
@virtual_time
async def test_rows_of_a_crashed_owner_go_on_after_its_lease() -> None:
    world = World(shards=2)
    world.broker.faults.choose = lambda call: Hung() if call == "send" else None
    for number in range(10):
        world.outbox.insert("orders", b"%d" % number, b"v")
    task = world.start(world.relay(owner="pod-1-aaaa"))
    await asyncio.sleep(1)
    world.leases.faults.choose = lambda call: Hung() if call in {"release", "leave"} else None
    await world.kill(task)
    world.broker.faults.choose = lambda _: None
    world.leases.faults.choose = lambda _: None
    world.start(world.relay(owner="pod-1-bbbb"))
    await world.drained(2 * LEASE.total_seconds())
    assert sorted(world.published_ids()) == list(range(1, 11))


@pytest.mark.fixes("B023")
@virtual_time
async def test_an_owner_that_froze_past_its_lease_sends_nothing_when_it_goes_on() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    relay = world.relay()
    world.start(relay)
    world.outbox.insert("orders", b"k", b"0")
    await world.drained()
    # The row is read and queued behind a batch; then the process stops for longer than its lease.
    world.broker.faults.plan("send", Delayed(0.05))
    world.outbox.insert("orders", b"k", b"1")
    await world.until(lambda: world.broker.faults.calls.count("send") == 2)
    world.outbox.insert("orders", b"k", b"2")
    await asyncio.sleep(0.03)
    sends = world.broker.faults.calls.count("send")
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.jump(11)
    thief = world.leases.steal(world.lease_name(0), "another", LEASE)
    await world.until(lambda: "shard_lost" in world.logger.events())
    assert world.broker.faults.calls.count("send") == sends, "nothing was sent after the pause"
    assert world.leases.holds(thief)
    assert world.outbox.marked == [1], "what was done under the lost lease is not marked"


@pytest.mark.fixes("B023")
@virtual_time
async def test_a_mark_under_a_lost_lease_changes_nothing_and_the_shard_is_forgotten() -> None:
    world = World(shards=1)
    relay = world.relay()
    world.start(relay)
    await asyncio.sleep(1)
    world.outbox.faults.plan("mark", Delayed(0.5))
    world.outbox.insert("orders", b"k", b"v")
    await world.until(lambda: len(world.published_ids()) == 1)
    world.leases.steal(world.lease_name(0), "another", LEASE)
    await world.until(lambda: "shard_lost" in world.logger.events())
    assert world.outbox.unmarked == [1]
    await world.drained(30)
    assert world.published_ids() == [1]


@virtual_time
async def test_without_renewals_sending_stops_when_the_lease_time_is_over() -> None:
    world = World(shards=1)
    relay = world.relay()
    world.start(relay)
    world.outbox.insert("orders", b"k", b"v")
    await world.drained()
    down = DatabaseUnreachable("refused")
    world.leases.faults.choose = lambda call: Raised(down) if call != "release" else None
    began = world.clock.now().timestamp()
    for _ in range(40):
        world.outbox.insert("orders", b"k", b"v")
        await asyncio.sleep(0.5)
    last = max(record.timestamp for record in world.records()) / 1000
    assert 5 < last - began < LEASE.total_seconds()
    assert relay.health().stall is not None
    world.leases.faults.choose = lambda _: None
    await world.drained()
    assert len(world.published_ids()) == len(set(world.published_ids()))


@virtual_time
async def test_a_stale_batch_that_arrives_after_the_take_over_is_refused() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    task = world.start(world.relay())
    world.outbox.insert("orders", b"k", b"0")
    await world.drained()
    world.broker.faults.plan("send", Late(30, SendOutcomeUnknown("in a socket")))
    world.outbox.insert("orders", b"k", b"1")
    await world.until(lambda: world.broker.faults.calls.count("send") == 2)
    await world.kill(task)
    world.outbox.insert("orders", b"k", b"2")
    world.start(world.relay())
    await world.drained()
    await asyncio.sleep(40)
    assert world.broker.stale_refused == 1
    assert world.values(b"k") == [b"0", b"1", b"2"]


@virtual_time
async def test_a_partition_that_cannot_be_fenced_gets_nothing_until_it_is() -> None:
    world = World(shards=1, topics=("orders", "other"))
    task = world.start(world.relay())
    for topic in ("orders", "other"):
        world.outbox.insert(topic, b"k", b"0")
    await world.drained()
    world.broker.faults.plan("send", Late(12, SendOutcomeUnknown("in a socket")))
    world.outbox.insert("orders", b"k", b"1")
    await asyncio.sleep(0.1)
    await world.kill(task)
    world.broker.deny("orders")
    relay = world.relay()
    world.start(relay)
    world.outbox.insert("orders", b"k", b"2")
    world.outbox.insert("other", b"k", b"2")
    await world.until(lambda: world.values(b"k", "other") == [b"0", b"2"])
    assert "orders" in relay.health().detail["paused_topics"]  # type: ignore[operator]
    world.broker.deny("orders", is_denied=False)
    await world.drained(120)
    await asyncio.sleep(20)
    assert world.values(b"k") == [b"0", b"1", b"2"]


@virtual_time
async def test_a_topic_that_is_well_again_before_its_shard_is_open_is_fenced_all_the_same() -> None:
    world = World(shards=2, topics=("orders", "other"))
    keys = {world.outbox.shard_of(1, b"%d" % number): b"%d" % number for number in range(20)}
    task = world.start(world.relay())
    for topic in ("orders", "other"):
        for key in keys.values():
            world.outbox.insert(topic, key, b"0")
    await world.drained()
    world.broker.faults.plan("send", Late(12, SendOutcomeUnknown("in a socket")))
    world.outbox.insert("orders", keys[0], b"1")
    await asyncio.sleep(0.1)
    await world.kill(task)
    # Shard 0 has a past and reads it slowly; meanwhile shard 1, which has none, finds the topic well again.
    world.broker.deny("orders")
    world.broker.faults.choose = lambda call: Delayed(after=8) if call == "read" else None
    relay = world.relay()
    world.start(relay)
    await world.until(lambda: "read" in world.broker.faults.calls)
    world.broker.deny("orders", is_denied=False)
    for key in keys.values():
        world.outbox.insert("orders", key, b"2")
    await world.drained(60)
    assert world.values(keys[0]) == [b"0", b"1", b"2"]
    assert not relay.health().detail["paused_topics"]


def test_the_epoch_is_renewed_at_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shard_module._EPOCH_AGE <= 86_400
    monkeypatch.setattr(shard_module, "_EPOCH_AGE", 20.0)

    @virtual_time
    async def story() -> None:
        world = World(shards=1)
        world.start(world.relay())
        for _ in range(70):
            world.outbox.insert("orders", b"k", b"v")
            await asyncio.sleep(1)
        name = transactional_id(world.outbox.registration.relay_id, 0)
        assert {producer.transactional_id for producer in world.broker.producers} == {name}
        assert len(world.broker.producers) == 4
        await world.drained()
        assert len(world.published_ids()) == 70

    story()


@pytest.mark.fixes("B026")
@virtual_time
async def test_no_database_call_is_open_while_the_broker_is_silent() -> None:
    world = World(shards=1)
    world.broker.faults.choose = lambda call: Hung() if call == "send" else None
    for number in range(5):
        world.outbox.insert("orders", b"%d" % number, b"v")
    relay = world.relay()
    world.start(relay)
    await world.until(lambda: "send" in world.broker.faults.calls)
    before = world.outbox.faults.calls.count("fetch")
    await asyncio.sleep(5)
    # Reading goes on in short calls of its own, and another relay's rows could be marked meanwhile.
    assert world.outbox.faults.calls.count("fetch") > before
    assert "mark" not in world.outbox.faults.calls


@virtual_time
async def test_an_answer_of_acquire_that_was_lost_costs_one_lease_and_nothing_else() -> None:
    world = World(shards=1)
    world.leases.faults.plan("acquire", Lost(DatabaseUnreachable("answer lost")))
    world.outbox.insert("orders", b"k", b"v")
    world.start(world.relay())
    await world.drained(15)


@virtual_time
async def test_stop_marks_what_is_acknowledged_and_leaves_the_rest() -> None:
    world = World(shards=1)
    world.broker.faults.choose = lambda call: Delayed(0.5) if call == "send" else None
    relay = world.relay()
    task = world.start(relay)
    for number in range(20):
        world.outbox.insert("orders", b"%d" % number, b"v")
        await asyncio.sleep(0.05)
    await stopped(relay, task, seconds=5)
    assert sorted(world.published_ids()) == sorted(world.outbox.marked)
    assert world.outbox.unmarked
    assert world.leases.holds is not None
    heir = world.relay()
    world.start(heir)
    await world.drained()
    assert sorted(world.published_ids()) == list(range(1, 21))
    assert "shard_recovered" not in world.logger.events()


@virtual_time
async def test_a_cancelled_relay_leaves_no_task_and_no_producer() -> None:
    world = World(shards=2)
    world.broker.faults.choose = lambda call: Hung() if call == "send" else None
    for number in range(5):
        world.outbox.insert("orders", b"%d" % number, b"v")
    task = world.start(world.relay())
    await asyncio.sleep(1)
    await world.kill(task)
    assert all(producer.is_done for producer in world.broker.producers)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert world.outbox.marked == []


@virtual_time
async def test_a_producer_that_was_given_up_with_its_shard_says_nothing_of_the_broker() -> None:
    world = World(shards=1)
    relay = world.relay()
    world.start(relay)
    world.broker.faults.plan("send", Hung())
    world.outbox.insert("orders", b"k", b"1")
    await world.until(lambda: "send" in world.broker.faults.calls)
    world.leases.steal(world.lease_name(0), "somebody else", timedelta(seconds=300))
    await world.until(lambda: not relay.health().detail["shards_owned"])
    await asyncio.sleep(1)
    assert relay.health().stall is None


@virtual_time
async def test_a_broker_that_is_well_again_is_seen_although_nothing_is_to_be_sent() -> None:
    world = World(shards=1)
    relay = world.relay()
    world.start(relay)
    world.outbox.insert("orders", b"k", b"1")
    await world.drained()
    world.broker.faults.plan("topic", Raised(BrokerUnreachable("away")))  # the next look at a topic that is known
    await reason(world, relay, "broker_unreachable", seconds=90)
    await world.until(lambda: relay.health().stall is None, seconds=12)

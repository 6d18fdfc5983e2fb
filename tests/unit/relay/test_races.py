"""The narrow places, one by one: each of these orders of events once broke a rule or would without one line."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from outboxd.errors import SendOutcomeUnknown, StatementFailed
from outboxd.kafka.partitioner import partition_of
from outboxd.pipeline.relay.dependencies import Dependency
from outboxd.pipeline.relay.lease import HeldLease
from outboxd.records import Published
from outboxd.telemetry.emitter import Telemetry
from outboxd.testing.fakes.clock import virtual_time
from outboxd.testing.fakes.faults import Delayed, Hung, Lost, Raised
from tests.unit.relay.world import RecordingAction, World, no_instruments, reason, step


@virtual_time
async def test_a_lease_that_was_lost_during_the_fence_is_noticed_before_the_first_send() -> None:
    """The late fence shuts the rightful owner's producer out for a moment; a late send would come between its rows."""
    world = World(shards=1)
    task = world.start(world.relay())
    world.outbox.insert("orders", b"k", b"v")
    await world.drained()
    world.outbox.faults.plan("mark", Hung())
    world.outbox.insert("orders", b"k", b"w")
    await world.until(lambda: len(world.published_ids()) == 2)
    await world.kill(task)
    world.outbox.remove(2)  # or its mark would tell of the loss
    world.start(world.relay())
    world.broker.faults.plan("end_transaction", Delayed(before=2.0))
    await world.until(lambda: "end_transaction" in world.broker.faults.calls)
    world.outbox.insert("orders", b"k", b"x")
    await asyncio.sleep(1.9)
    world.leases.steal(world.lease_name(0), "another", timedelta(seconds=10))
    await asyncio.sleep(5)
    assert len(world.broker.producers) == 2
    assert world.broker.faults.calls.count("send") == 2
    assert "shard_lost" in world.logger.events()


@virtual_time
async def test_rows_that_recovery_finds_come_after_acknowledged_rows_whose_stage_is_still_being_stored() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    action = RecordingAction()
    world.start(world.relay({"orders": [step(action)]}))
    world.outbox.faults.plan("stage", Delayed(before=20.0))
    world.outbox.insert("orders", b"k", b"1")
    await world.until(lambda: len(world.published_ids()) == 1)
    world.broker.faults.plan("send", Lost(SendOutcomeUnknown("no answer")))
    world.outbox.insert("orders", b"k", b"2")
    await world.drained()
    assert action.done == [1, 2]
    assert world.published_ids() == [1, 2]


@virtual_time
async def test_rows_that_recovery_finds_come_after_rows_that_were_staged_before() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    is_first_owner = True

    class Slow(RecordingAction):
        async def act(self, published: Published, context: object) -> None:
            await asyncio.sleep(1e6 if is_first_owner else 0.001)
            self.done.append(published.row_id)

    action = Slow()
    plan = {"orders": [step(action)]}
    task = world.start(world.relay(plan))
    world.outbox.insert("orders", b"k", b"1")
    await world.until(lambda: 1 in world.outbox.staged)
    # Row 1 is staged and its action runs; row 2 of its key is in the log when the process dies, and is not staged.
    world.outbox.faults.plan("stage", Hung())
    world.outbox.insert("orders", b"k", b"2")
    await world.until(lambda: len(world.published_ids()) == 2)
    await world.kill(task)
    is_first_owner = False
    world.start(world.relay(plan))
    await world.drained()
    assert world.published_ids() == [1, 2]
    assert action.done == [1, 2]


@virtual_time
async def test_a_lease_is_believed_in_from_the_moment_its_renewal_was_sent() -> None:
    world = World(shards=1)
    telemetry = Telemetry(world.logger, no_instruments())
    taken = await world.leases.acquire("job", "me", timedelta(seconds=10))
    assert taken is not None
    lease = HeldLease(
        token=taken.token,
        asked_at=world.clock.monotonic(),
        lease_time=timedelta(seconds=10),
        written={},
        leases=world.leases,
        database=Dependency(pipeline="p", reason="database_unreachable", clock=world.clock, telemetry=telemetry),
        clock=world.clock,
        notes=dict,
        on_lost=lambda: None,
        on_expired=lambda: None,
    )
    await asyncio.sleep(5)
    world.leases.faults.plan("renew", Delayed(after=3.0))
    await lease.renew()
    assert lease.is_live
    await asyncio.sleep(6.9)
    assert lease.is_live
    await asyncio.sleep(0.2)
    assert not lease.is_live


@virtual_time
async def test_the_attempt_of_a_blocked_key_travels_alone() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    world.broker.rejects = {b"poison"}
    world.start(world.relay())
    world.outbox.insert("orders", b"bad", b"poison")
    await world.until(lambda: "key_blocked" in world.logger.events())
    blocked_at = len(world.logger.lines)
    world.broker.faults.choose = lambda call: Delayed(before=0.3) if call == "send" else None
    for number in range(400):
        world.outbox.insert("orders", b"%d" % number, b"v")
        await asyncio.sleep(0.04)
    failures = [fields["rows"] for event, fields in world.logger.lines[blocked_at:] if event == "batch_failed"]
    assert failures
    assert set(failures) == {1}
    await world.until(lambda: world.outbox.unmarked == [1])


@virtual_time
async def test_notes_go_on_once_rows_are_staged_although_their_actions_fail() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    world.start(world.relay({"orders": [step(RecordingAction(lambda _: True))]}))
    for number in range(5):
        world.outbox.insert("orders", b"%d" % number, b"v")
    await asyncio.sleep(8)
    assert len(world.outbox.unmarked) == 5
    assert world.leases.notes(world.lease_name(0)) == {"orders-0": 5}


@virtual_time
async def test_a_key_moves_to_its_new_partition_only_after_what_is_on_its_way_has_landed() -> None:
    key = next(key for key in (b"%d" % n for n in range(50)) if partition_of(key, 2) != partition_of(key, 5))
    world = World(shards=1)
    world.start(world.relay())
    world.outbox.insert("orders", key, b"0")
    await world.drained()
    await asyncio.sleep(54)
    world.broker.faults.plan("send", Delayed(before=20.0))
    world.outbox.insert("orders", key, b"1")
    await asyncio.sleep(1)
    world.broker.create_topic("orders", partitions=5)
    await asyncio.sleep(9)
    world.outbox.insert("orders", key, b"2")
    await world.drained()
    records = sorted((record for record in world.records()), key=lambda record: record.timestamp)
    assert [record.value for record in records] == [b"0", b"1", b"2"]
    assert records[1].partition != records[2].partition


@virtual_time
async def test_a_log_that_was_made_anew_is_read_although_the_notes_lie_behind_its_end() -> None:
    world = World(shards=1)
    world.broker.create_topic("orders", partitions=1)
    task = world.start(world.relay())
    for number in range(20):
        world.outbox.insert("orders", b"k", b"%d" % number)
    await world.drained()
    await world.until(lambda: world.leases.notes(world.lease_name(0)) == {"orders-0": 20})
    world.broker.recreate_topic("orders")
    world.outbox.faults.plan("mark", Hung())
    world.outbox.insert("orders", b"k", b"new")
    await world.until(lambda: len(world.published_ids()) == 1)
    await world.kill(task)
    assert world.leases.notes(world.lease_name(0)) == {"orders-0": 20}
    world.start(world.relay())
    await world.drained()
    assert world.values(b"k") == [b"new"]


@virtual_time
async def test_a_mark_that_is_refused_shows_as_that_until_marks_are_taken_again() -> None:
    world = World(shards=1)
    relay = world.relay()
    world.start(relay)
    world.outbox.faults.choose = lambda call: (
        Raised(StatementFailed("no deletes here", sqlstate="P0001")) if call == "mark" else None
    )
    world.outbox.insert("orders", b"k", b"v")
    await reason(world, relay, "mark_refused")
    for _ in range(200):  # fetches and renewals succeed meanwhile
        await asyncio.sleep(0.1)
        stall = relay.health().stall
        assert stall is not None
        assert stall.message == "no deletes here"
    assert world.logger.events().count("outage_began") == 1
    world.outbox.faults.choose = lambda _: None
    await world.drained(10)
    assert relay.health().stall is None
    assert len(world.published_ids()) == 1


@virtual_time
async def test_the_answer_to_a_mark_that_comes_after_the_shard_was_lost_frees_no_memory_twice() -> None:
    world = World(shards=1)
    relay = world.relay()
    world.start(relay)
    await world.until(lambda: "shard_acquired" in world.logger.events())
    world.outbox.faults.plan("mark", Delayed(after=8.0))
    world.outbox.insert("orders", b"k", b"v")
    await world.until(lambda: not world.outbox.unmarked)
    world.leases.steal(world.lease_name(0), "another", timedelta(seconds=4))
    await world.until(lambda: "shard_lost" in world.logger.events())
    await asyncio.sleep(10)
    assert relay.health().detail["in_flight"] == 0
    assert relay.health().detail["in_flight_bytes"] == 0

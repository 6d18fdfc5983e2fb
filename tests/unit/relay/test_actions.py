"""Actions run after the publish, in the order of their key, and never make a row go out twice."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outboxd.errors import ConfigurationError, DatabaseDenied, DatabaseUnreachable
from outboxd.ids import idempotency_id
from outboxd.records import Published
from outboxd.testing.fakes.clock import virtual_time
from outboxd.testing.fakes.faults import Delayed, Hung, Lost, Raised
from tests.unit.relay.world import RecordingAction, SqlAction, World, reason, step, stopped


@virtual_time
async def test_the_answer_is_stored_before_an_action_runs() -> None:
    world = World(shards=1)
    staged: list[bool] = []

    def fails(published: Published) -> bool:
        staged.append(published.row_id in world.outbox.staged)
        return False

    action = RecordingAction(fails)
    world.outbox.insert("orders", b"k", b"v")
    world.start(world.relay({"orders": [step(action)]}))
    await world.drained()
    assert staged == [True]
    [published] = action.calls
    assert (published.topic, published.key, published.value) == ("orders", b"k", b"v")
    assert published.idempotency_id == idempotency_id(world.outbox.registration.relay_id, 1, 0)


@virtual_time
async def test_a_failing_action_blocks_its_key_and_nothing_else() -> None:
    world = World(shards=1)
    broken = True
    action = RecordingAction(lambda published: broken and published.row_id == 1)
    for number in range(20):
        world.outbox.insert("orders", b"key-%d" % (number % 2), b"%d" % number)
    relay = world.relay({"orders": [step(action)]})
    world.start(relay)
    await world.until(lambda: all(row_id % 2 for row_id in world.outbox.unmarked))
    health = await reason(world, relay, "keys_blocked")
    assert health.detail["keys_blocked"] == 1
    assert 1 in world.outbox.unmarked
    assert not [published for published in action.calls if published.key == b"key-0" and published.row_id != 1]
    broken = False
    await world.drained(120)
    assert [row_id for row_id in action.done if row_id % 2] == list(range(1, 21, 2))
    assert len(world.published_ids()) == 20
    assert relay.health().stall is None


@virtual_time
async def test_after_a_restart_only_the_actions_go_on_where_they_stopped() -> None:
    world = World(shards=1)
    first, second = RecordingAction(), RecordingAction(lambda _: True)
    plan = {"orders": [step(first), step(second)]}
    row_id = world.outbox.insert("orders", b"k", b"v")
    relay = world.relay(plan)
    task = world.start(relay)
    await world.until(lambda: world.outbox.staged.get(row_id) is not None and len(second.calls) >= 1)
    await asyncio.sleep(0.1)
    assert world.outbox.staged[row_id].next_action == 1
    await world.kill(task)
    second.fails = lambda _: False
    world.start(world.relay(plan))
    await world.drained(30)
    assert len(first.calls) == 1
    assert len({published.idempotency_id for published in second.calls}) == 1
    assert world.published_ids() == [row_id]


@virtual_time
async def test_an_action_without_end_is_cut_off_at_its_deadline() -> None:
    world = World(shards=1)

    class Endless(RecordingAction):
        async def act(self, published: Published, context: object) -> None:
            self.calls.append(published)
            if published.key == b"stuck":
                await asyncio.sleep(1e9)

    action = Endless()
    world.outbox.insert("orders", b"stuck", b"v")
    world.outbox.insert("orders", b"fine", b"v")
    relay = world.relay({"orders": [step(action)]})
    world.start(relay)
    await world.until(lambda: world.outbox.marked == [2])
    await reason(world, relay, "keys_blocked", seconds=31)
    assert world.outbox.unmarked == [1]


@virtual_time
async def test_a_plain_function_is_an_action_too() -> None:
    world = World(shards=1)
    seen: list[int] = []

    class Plain(RecordingAction):
        def act(self, published: Published, context: object) -> None:  # type: ignore[override]
            seen.append(published.row_id)

    world.outbox.insert("orders", b"k", b"v")
    world.start(world.relay({"orders": [step(Plain())]}))
    await world.drained()
    assert seen == [1]


@virtual_time
async def test_statements_commit_with_the_mark_and_a_bad_row_stops_nobody_else() -> None:
    world = World(shards=1)
    world.outbox.refuses = lambda statement: list(statement.arguments) == [3]
    for number in range(6):
        world.outbox.insert("orders", b"key-%d" % (number % 3), b"v")
    relay = world.relay({"orders": [step(SqlAction())]})
    world.start(relay)
    await world.until(lambda: world.outbox.unmarked == [3, 6])
    await reason(world, relay, "keys_blocked")
    assert sorted(row_id for s in world.outbox.statements for row_id in s.arguments) == [1, 2, 4, 5]  # type: ignore[type-var]
    world.outbox.refuses = lambda _: False
    await world.drained()
    assert len(world.outbox.statements) == 6
    assert len(world.published_ids()) == 6


@pytest.mark.parametrize("fault", [Lost(DatabaseUnreachable("answer lost")), Hung(is_done=True), Hung()])
def test_statements_whose_commit_is_unknown_run_once(fault: object) -> None:
    @virtual_time
    async def story() -> None:
        world = World(shards=1)
        world.outbox.faults.plan("mark_statements", fault)  # type: ignore[arg-type]
        for number in range(6):
            world.outbox.insert("orders", b"key-%d" % (number % 2), b"v")
        relay = world.relay({"orders": [step(SqlAction())]})
        world.start(relay)
        await world.drained(120)
        await asyncio.sleep(65)
        assert sorted(row_id for s in world.outbox.statements for row_id in s.arguments) == [1, 2, 3, 4, 5, 6]  # type: ignore[type-var]
        assert len(world.published_ids()) == 6
        assert relay.health().stall is None
        assert relay.health().detail["in_flight"] == 0

    story()


@virtual_time
async def test_a_row_on_its_way_to_the_broker_does_not_overtake_rows_that_went_back_to_the_table() -> None:
    world = World(shards=1)
    # The outcome of row 1's statement stays unknown for a minute; row 2 waits behind it and goes back to the table;
    # row 3 is with the broker, and comes in when row 1 is settled and row 2 not read yet.
    world.outbox.faults.plan("mark_statements", Hung())
    world.start(world.relay({"orders": [step(SqlAction())]}, send_deadline=timedelta(seconds=600)))
    first = world.outbox.insert("orders", b"k", b"1")
    await world.until(lambda: "mark_statements" in world.outbox.faults.calls)
    world.outbox.insert("orders", b"k", b"2")
    await world.until(lambda: world.published_ids() == [1, 2])
    world.broker.faults.plan("send", Hung(), Hung(), Hung())  # answered by the fourth request, after 90 s
    world.outbox.insert("orders", b"k", b"3")
    world.outbox.faults.choose = lambda call: (
        Delayed(before=90) if call == "fetch" and first not in world.outbox.unmarked else None
    )
    await world.until(lambda: world.published_ids() == [1, 2, 3], 120)
    assert world.outbox.unmarked[-2:] == [2, 3]
    world.outbox.faults.choose = lambda _: None
    await world.drained(300)
    assert [row_id for statement in world.outbox.statements for row_id in statement.arguments] == [1, 2, 3]


@virtual_time
async def test_a_topic_without_actions_stores_no_stage() -> None:
    world = World(shards=1, topics=("orders", "plain"))
    world.outbox.insert("plain", b"k", b"v")
    world.start(world.relay({"orders": [step(RecordingAction())]}))
    await world.drained()
    assert "stage" not in world.outbox.faults.calls
    assert world.outbox.faults.calls.count("mark") == 1


@virtual_time
async def test_stop_waits_for_the_action_that_runs_and_leaves_the_others_staged() -> None:
    world = World(shards=1)

    class Slow(RecordingAction):
        async def act(self, published: Published, context: object) -> None:
            await asyncio.sleep(2)
            self.done.append(published.row_id)

    action = Slow()
    for _ in range(5):
        world.outbox.insert("orders", b"k", b"v")
    relay = world.relay({"orders": [step(action)]})
    task = world.start(relay)
    await asyncio.sleep(1)
    await stopped(relay, task, seconds=5)
    assert world.outbox.marked == [1]
    assert sorted(world.outbox.staged) == [2, 3, 4, 5]
    world.start(world.relay({"orders": [step(action)]}))
    await world.drained(30)
    assert action.done == [1, 2, 3, 4, 5]
    assert len(world.published_ids()) == 5


def test_an_action_behind_one_that_commits_with_the_mark_is_refused() -> None:
    @virtual_time
    async def story() -> None:
        with pytest.raises(ConfigurationError, match="commits with the mark"):
            World().relay({"orders": [step(SqlAction()), step(RecordingAction())]})

    story()


@virtual_time
async def test_a_mark_with_statements_that_is_refused_shows_as_that_and_not_as_an_outage() -> None:
    world = World(shards=1)
    relay = world.relay({"orders": [step(SqlAction())]})
    world.start(relay)
    refusal = Raised(DatabaseDenied("permission denied for table outbox"))
    world.outbox.faults.choose = lambda call: refusal if call == "mark_statements" else None
    for number in range(3):
        world.outbox.insert("orders", b"k", b"%d" % number)
    await reason(world, relay, "mark_refused")
    await asyncio.sleep(20)
    assert world.logger.events().count("outage_began") == 1
    world.outbox.faults.choose = lambda _: None
    await world.drained()
    assert [statement.arguments for statement in world.outbox.statements] == [[1], [2], [3]]
    assert world.published_ids() == [1, 2, 3]

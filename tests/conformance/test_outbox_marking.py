"""The port `OutboxStore`, writing: under whose lease rows are marked and staged, and what a lost connection may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outboxd.errors import DatabaseUnreachable, LeaseLost, StatementFailed
from outboxd.ports import LeaseToken, Mark
from tests.conformance.outbox_words import mark, pending, put, sent, stages
from tests.conformance.store_world import TTL, Loss, StoreWorld, take
from tests.conformance.telling import conforms


@conforms
async def test_rows_are_marked_under_a_lease_that_holds_and_no_others(relays: StoreWorld) -> None:
    rows = await put(relays, 6)
    ours, lost = await take(relays.leases, "relay:x:0"), await take(relays.leases, "relay:x:1")
    await relays.later(31)
    theirs = await take(relays.other.leases, "relay:x:1", "b")
    never = LeaseToken(name="relay:x:2", owner="a", epoch=1)
    marks = [
        Mark(lease=ours, row_ids=[rows[0], rows[2]]),
        Mark(lease=lost, row_ids=[rows[1]]),
        Mark(lease=never, row_ids=[rows[3]]),
    ]
    assert await relays.outbox.mark(marks) == {"relay:x:1", "relay:x:2"}
    assert await pending(relays) == [rows[1], rows[3], rows[4], rows[5]]
    assert await mark(relays.other.outbox, theirs, rows[1:4]) == frozenset()
    assert await pending(relays) == rows[4:]
    assert await relays.outbox.mark([]) == frozenset()


@conforms
async def test_marking_twice_and_marking_what_is_gone_is_harmless(relays: StoreWorld) -> None:
    rows = await put(relays, 3)
    lease = await take(relays.leases)
    for _ in range(2):
        assert await mark(relays.outbox, lease, [*rows[:2], rows[0], 10**12]) == frozenset()
        assert await pending(relays) == rows[2:]


@conforms
async def test_an_owner_marks_under_its_last_epoch_only(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    old = await take(relays.leases)
    new = await take(relays.leases)
    assert await mark(relays.outbox, old, rows[:1]) == {"job"}
    with pytest.raises(LeaseLost):
        await relays.outbox.stage(old, [sent(rows[0])])
    assert await pending(relays) == rows
    assert await mark(relays.outbox, new, rows[:1]) == frozenset()


@conforms
async def test_a_lease_past_its_time_that_nobody_took_is_good_for_marks_and_stages(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    lease = await take(relays.leases)
    await relays.later(31)
    await relays.outbox.stage(lease, [sent(rows[1])])
    assert await mark(relays.outbox, lease, rows[:1]) == frozenset()
    assert await pending(relays) == rows[1:]
    await relays.leases.release(lease, {})
    assert await mark(relays.outbox, lease, rows[1:]) == {"job"}
    assert await pending(relays) == rows[1:]


@conforms
async def test_of_a_mark_and_a_take_over_in_the_same_moment_one_comes_first(relays: StoreWorld) -> None:
    token = await take(relays.leases, owner="o")
    for round_ in range(8):
        (row,) = await put(relays)
        await relays.later(31)
        marking = mark(relays.outbox, token, [row])
        lost, taken = await asyncio.gather(marking, relays.other.leases.acquire("job", f"o{round_}", TTL))
        assert taken is not None
        assert (await pending(relays) == [row]) is (lost == {"job"})
        assert await mark(relays.outbox, token, [row]) == {"job"}
        token = taken.token
        assert await mark(relays.other.outbox, token, [row]) == frozenset()
        assert await pending(relays) == []


@conforms
async def test_two_that_mark_the_same_rows_at_once_mark_them_once(relays: StoreWorld) -> None:
    rows = await put(relays, 20)
    one, two = await take(relays.leases, "one"), await take(relays.leases, "two")
    statement = relays.entry(1)
    outcomes = await asyncio.gather(
        mark(relays.outbox, one, rows, [statement]),
        mark(relays.other.outbox, two, list(reversed(rows)), [statement]),
        return_exceptions=True,
    )
    assert sorted(map(str, map(type, outcomes))) == sorted(map(str, (frozenset, StatementFailed)))
    assert (await pending(relays), await relays.ledger()) == ([], [1])


# -- marking with statements


@conforms
async def test_statements_commit_with_the_mark(relays: StoreWorld) -> None:
    rows = await put(relays, 3)
    lease = await take(relays.leases)
    marks = [
        Mark(lease=lease, row_ids=[row], statements=[relays.entry(n), relays.entry(n + 10)])
        for n, row in enumerate(rows[:2])
    ]
    assert await relays.outbox.mark(marks) == frozenset()
    assert (await pending(relays), await relays.ledger()) == (rows[2:], [0, 1, 10, 11])


@conforms
async def test_one_statement_that_fails_undoes_everything_and_names_its_sqlstate(relays: StoreWorld) -> None:
    rows = await put(relays, 3)
    lease, other = await take(relays.leases), await take(relays.leases, "other")
    await relays.outbox.stage(lease, [sent(row) for row in rows])
    marks = [
        Mark(lease=lease, row_ids=rows[:1], statements=[relays.entry(1)]),
        Mark(lease=lease, row_ids=rows[1:2], statements=[relays.entry(2), relays.refused()]),
        Mark(lease=other, row_ids=rows[2:], statements=[relays.entry(3)]),
    ]
    with pytest.raises(StatementFailed) as failed:
        await relays.outbox.mark(marks)
    assert failed.value.sqlstate == "23514"
    assert (await pending(relays), await relays.staged(), await relays.ledger()) == (rows, rows, [])


@conforms
async def test_a_statement_of_a_row_that_is_not_pending_any_more_is_not_run_again(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    lease = await take(relays.leases)
    assert await mark(relays.outbox, lease, rows[:1], [relays.entry(1)]) == frozenset()
    with pytest.raises(StatementFailed) as failed:
        await mark(relays.outbox, lease, rows[:1], [relays.entry(1)])
    assert failed.value.sqlstate is None
    marks = [Mark(lease=lease, row_ids=[row], statements=[relays.entry(n)]) for n, row in ((1, rows[0]), (2, rows[1]))]
    with pytest.raises(StatementFailed):
        await relays.outbox.mark(marks)
    assert (await pending(relays), await relays.ledger()) == (rows[1:], [1])


@conforms
async def test_statements_of_a_lost_lease_are_not_run_and_the_others_are(relays: StoreWorld) -> None:
    rows = await put(relays, 3)
    held, lost = await take(relays.leases, "held"), await take(relays.leases, "lost")
    await relays.leases.release(lost, {})
    marks = [
        Mark(lease=lost, row_ids=rows[:1], statements=[relays.entry(1)]),
        Mark(lease=held, row_ids=rows[1:2], statements=[relays.entry(2)]),
        Mark(lease=held, row_ids=rows[2:]),
    ]
    assert await relays.outbox.mark(marks) == {"lost"}
    assert (await pending(relays), await relays.ledger()) == (rows[:1], [2])
    assert await relays.outbox.mark(marks[:1]) == {"lost"}


@conforms
async def test_a_row_that_is_done_under_a_lost_lease_is_no_failure_of_its_statement(relays: StoreWorld) -> None:
    rows = await put(relays, 1)
    old = await take(relays.leases)
    new = await take(relays.leases)
    await mark(relays.outbox, new, rows, [relays.entry(1)])
    assert await mark(relays.outbox, old, rows, [relays.entry(1)]) == {"job"}
    assert await relays.ledger() == [1]


# -- staging


@conforms
async def test_a_staged_row_comes_back_as_sent_until_it_is_marked(relays: StoreWorld) -> None:
    rows = await put(relays, 3)
    lease = await take(relays.leases)
    await relays.outbox.stage(lease, [sent(rows[0]), sent(rows[1], offset=43)])
    await relays.outbox.stage(lease, [sent(rows[0], next_action=1)])
    await relays.outbox.stage(lease, [])
    both = {rows[0]: sent(rows[0], next_action=1).sent, rows[1]: sent(rows[1], offset=43).sent}
    assert await stages(relays.outbox) == await stages(relays.other.outbox) == both
    assert await mark(relays.outbox, lease, rows[:1], [relays.entry(1)]) == frozenset()
    assert await mark(relays.outbox, lease, rows[1:]) == frozenset()
    assert await relays.staged() == []


@conforms
async def test_nothing_is_staged_or_dropped_under_a_lost_lease(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    lost = await take(relays.leases)
    await relays.outbox.stage(lost, [sent(rows[0])])
    await relays.later(31)
    await take(relays.other.leases, owner="b")
    with pytest.raises(LeaseLost):
        await relays.outbox.stage(lost, [sent(rows[0], next_action=1), sent(rows[1])])
    with pytest.raises(LeaseLost):
        await relays.outbox.stage(lost, [])
    assert await mark(relays.outbox, lost, rows) == {"job"}
    assert await stages(relays.outbox) == {rows[0]: sent(rows[0]).sent}


@conforms
async def test_what_is_staged_last_stands(relays: StoreWorld) -> None:
    """An owner stages under its lease in order: going back is its own wish (sent again after a fence)."""
    (row,) = await put(relays)
    lease = await take(relays.leases)
    await relays.outbox.stage(lease, [sent(row, next_action=2)])
    await relays.outbox.stage(lease, [sent(row, offset=99)])
    assert await stages(relays.outbox) == {row: sent(row, offset=99).sent}


@conforms
async def test_a_row_that_is_done_or_gone_is_left_out_of_the_stage(relays: StoreWorld) -> None:
    done, gone, there = await put(relays, 3)
    lease = await take(relays.leases)
    await mark(relays.outbox, lease, [done])
    await relays.delete(gone)
    await relays.outbox.stage(lease, [sent(done), sent(gone), sent(there), sent(10**12)])
    assert await relays.staged() == [there]


@conforms
async def test_a_row_that_was_edited_after_it_was_sent_is_not_taken_for_sent(relays: StoreWorld) -> None:
    edited, other = await put(relays, 2)
    lease = await take(relays.leases)
    await relays.outbox.stage(lease, [sent(edited), sent(other)])
    await relays.edit(edited, b"new")
    assert await stages(relays.outbox) == {other: sent(other).sent}
    (row,) = await relays.outbox.pending([edited])
    assert (row.value, row.sent) == (b"new", None)
    await relays.outbox.stage(lease, [sent(edited, offset=77)])
    assert (await stages(relays.outbox))[edited] == sent(edited, offset=77).sent
    assert await mark(relays.outbox, lease, [edited, other]) == frozenset()
    assert await relays.staged() == []


# -- statements that travel on after their caller was told of a lost connection


@conforms
async def test_a_mark_or_stage_that_arrives_late_is_carried_out_while_its_lease_holds(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    lease = await take(relays.leases)
    async with relays.belated("stage"):
        with pytest.raises(DatabaseUnreachable):
            await relays.outbox.stage(lease, [sent(rows[1])])
    assert await stages(relays.outbox) == {}
    await relays.deliver()
    assert await stages(relays.outbox) == {rows[1]: sent(rows[1]).sent}
    async with relays.belated("mark"):
        with pytest.raises(DatabaseUnreachable):
            await mark(relays.outbox, lease, rows)
    assert await pending(relays) == rows
    await relays.deliver()
    assert (await pending(relays), await relays.staged()) == ([], [])


@conforms
async def test_a_mark_or_stage_that_arrives_after_a_take_over_does_nothing(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    calls: dict[str, Callable[[LeaseToken], Awaitable[object]]] = {
        "mark": lambda lease: mark(relays.outbox, lease, rows),
        "stage": lambda lease: relays.outbox.stage(lease, [sent(row) for row in rows]),
    }
    for call, made in calls.items():
        lease = await take(relays.leases, call)
        async with relays.belated(call):
            with pytest.raises(DatabaseUnreachable):
                await made(lease)
        await relays.later(31)
        await take(relays.other.leases, call, "b")
        await relays.deliver()
        assert (await pending(relays), await relays.staged()) == (rows, [])


@conforms
async def test_a_stage_that_arrives_after_its_rows_were_marked_leaves_nothing(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    lease = await take(relays.leases)
    async with relays.belated("stage"):
        with pytest.raises(DatabaseUnreachable):
            await relays.outbox.stage(lease, [sent(row) for row in rows])
    await mark(relays.outbox, lease, rows)
    await relays.deliver()
    assert await relays.staged() == []


# -- connections that are lost in the middle


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_mark_whose_connection_is_lost_marked_all_or_nothing(relays: StoreWorld, loss: Loss) -> None:
    rows = await put(relays, 3)
    one, two = await take(relays.leases, "one"), await take(relays.leases, "two")
    await relays.outbox.stage(one, [sent(rows[0])])
    marks = [Mark(lease=one, row_ids=rows[:1]), Mark(lease=two, row_ids=rows[1:])]
    async with relays.losing(loss, "mark"):
        with pytest.raises(DatabaseUnreachable):
            await relays.outbox.mark(marks)
    assert await pending(relays) == ([] if loss.is_done else rows)
    assert await relays.staged() == ([] if loss.is_done else rows[:1])
    assert await relays.outbox.mark(marks) == frozenset()
    assert (await pending(relays), await relays.staged()) == ([], [])


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_statements_whose_connection_is_lost_ran_once_or_never(relays: StoreWorld, loss: Loss) -> None:
    rows = await put(relays, 2)
    lease = await take(relays.leases)
    marks = [Mark(lease=lease, row_ids=[row], statements=[relays.entry(n)]) for n, row in enumerate(rows)]
    async with relays.losing(loss, "mark_statements"):
        with pytest.raises(DatabaseUnreachable):
            await relays.outbox.mark(marks)
    assert (await pending(relays), await relays.ledger()) == (([], [0, 1]) if loss.is_done else (rows, []))
    if loss.is_done:
        with pytest.raises(StatementFailed):
            await relays.outbox.mark(marks)
    else:
        assert await relays.outbox.mark(marks) == frozenset()
    assert (await pending(relays), await relays.ledger()) == ([], [0, 1])


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_stage_whose_connection_is_lost_stored_all_or_nothing(relays: StoreWorld, loss: Loss) -> None:
    rows = await put(relays, 2)
    lease = await take(relays.leases)
    async with relays.losing(loss, "stage"):
        with pytest.raises(DatabaseUnreachable):
            await relays.outbox.stage(lease, [sent(row) for row in rows])
    assert await relays.staged() == (rows if loss.is_done else [])
    await relays.outbox.stage(lease, [sent(row) for row in rows])
    assert await relays.staged() == rows

"""The port `DrainStore`: letters and the position behind them in one transaction, under the lease's epoch."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.errors import DatabaseUnreachable, LeaseLost, LetterUnknown, StatementFailed
from outboxd.ports import LeaseToken, LetterFilter
from tests.conformance.store_world import TTL, Loss, StoreWorld, a_letter, take
from tests.conformance.telling import conforms

LEASE = "drain:establishment:topic"


async def letters_home(world: StoreWorld) -> int:
    return len((await world.letters.find(LetterFilter(), limit=100)).items)


@conforms
async def test_letters_are_carried_once_with_their_position(stores: StoreWorld) -> None:
    lease = await take(stores.leases, LEASE)
    first, second = a_letter(1), a_letter(2)
    await stores.letters.store([first], sink="home")
    assert await stores.letters.drain([first, second, second], sink="topic", lease=lease, position='{"0": 7}') == 1
    assert await stores.notes(LEASE) == {"position": '{"0": 7}'}
    assert await stores.letters.drain([first, second], sink="topic", lease=lease, position='{"0": 9}') == 0
    assert await stores.letters.drain([], sink="topic", lease=lease, position='{"0": 10}') == 0
    assert await stores.notes(LEASE) == {"position": '{"0": 10}'}
    view = await stores.letters.get(second.id)
    assert (view.letter, view.sink) == (second, "topic")
    assert (await stores.letters.get(first.id)).sink == "home"
    assert await letters_home(stores) == 2


@conforms
async def test_the_position_is_laid_over_the_other_notes_and_found_by_the_successor(stores: StoreWorld) -> None:
    lease = await take(stores.leases, LEASE)
    await stores.leases.renew(lease, TTL, {"format": 1, "position": "a"})
    await stores.letters.drain([a_letter()], sink="topic", lease=lease, position='"b" \\ é')
    await stores.later(31)
    successor = await stores.other.leases.acquire(LEASE, "b", TTL)
    assert successor is not None
    assert successor.notes == {"format": 1, "position": '"b" \\ é'}


@conforms
async def test_under_a_lost_lease_nothing_is_done(stores: StoreWorld) -> None:
    lost = await take(stores.leases, LEASE)
    await stores.letters.drain([a_letter(0)], sink="topic", lease=lost, position="1")
    await stores.later(31)
    ours = await take(stores.other.leases, LEASE, "b")
    never = LeaseToken(name="drain:establishment:spool", owner="a", epoch=1)
    for wrong in (lost, never, LeaseToken(name=LEASE, owner="b", epoch=ours.epoch - 1)):
        for batch in ([a_letter(1)], []):
            with pytest.raises(LeaseLost):
                await stores.letters.drain(batch, sink="topic", lease=wrong, position="9")
    assert (await letters_home(stores), await stores.notes(LEASE)) == (1, {"position": "1"})
    await stores.other.leases.release(ours, {})
    with pytest.raises(LeaseLost):
        await stores.letters.drain([a_letter(2)], sink="topic", lease=ours, position="9")


@conforms
async def test_a_lease_past_its_time_that_nobody_took_is_good(stores: StoreWorld) -> None:
    lease = await take(stores.leases, LEASE)
    await stores.later(31)
    assert await stores.letters.drain([a_letter()], sink="topic", lease=lease, position="1") == 1


@conforms
async def test_what_retention_dropped_does_not_come_back(stores: StoreWorld) -> None:
    lease = await take(stores.leases, LEASE)
    gone = a_letter()
    await stores.letters.store([gone], sink="home")
    await stores.drop(gone.id)
    assert await stores.letters.drain([gone], sink="topic", lease=lease, position="1") == 0
    with pytest.raises(LetterUnknown):
        await stores.letters.get(gone.id)


@conforms
async def test_a_letter_that_the_home_refuses_holds_its_whole_batch_back(stores: StoreWorld) -> None:
    lease = await take(stores.leases, LEASE)
    with pytest.raises(StatementFailed):
        await stores.letters.drain([a_letter(0), a_letter(1, partition=2**40)], sink="topic", lease=lease, position="2")
    assert (await letters_home(stores), await stores.notes(LEASE)) == (0, {})
    assert await stores.letters.drain([a_letter(0)], sink="topic", lease=lease, position="1") == 1


@conforms
async def test_the_chain_and_two_drains_that_bring_the_same_letters_at_once_bring_each_once(
    stores: StoreWorld,
) -> None:
    made = [a_letter(number) for number in range(10)]
    topic, spool = await take(stores.leases, "drain:p:topic"), await take(stores.leases, "drain:p:spool")
    new_of_topic, new_of_spool, _ = await asyncio.gather(
        stores.letters.drain(made, sink="topic", lease=topic, position="1"),
        stores.other.letters.drain(made[::-1], sink="spool", lease=spool, position="1"),
        stores.other.letters.store(made[5:], sink="home"),
    )
    sinks = [(await stores.letters.get(letter.id)).sink for letter in made]
    assert (new_of_topic, new_of_spool) == (sinks.count("topic"), sinks.count("spool"))
    assert [len(await stores.history(letter.id)) for letter in made] == [1] * 10


@conforms
async def test_of_a_drain_and_a_take_over_in_the_same_moment_one_comes_first(stores: StoreWorld) -> None:
    token = await take(stores.leases, LEASE, "o")
    for number in range(8):
        await stores.later(31)
        drained, taken = await asyncio.gather(
            stores.letters.drain([a_letter(number)], sink="topic", lease=token, position=str(number)),
            stores.other.leases.acquire(LEASE, f"o{number}", TTL),
            return_exceptions=True,
        )
        assert taken is not None
        assert not isinstance(taken, BaseException)
        is_drained = drained == 1
        assert is_drained or isinstance(drained, LeaseLost)
        assert (taken.notes.get("position") == str(number)) is is_drained, "the successor goes on where all is home"
        token = taken.token
        await stores.other.letters.drain([], sink="topic", lease=token, position="x")


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_batch_whose_connection_is_lost_is_home_with_its_position_or_not_at_all(
    stores: StoreWorld, loss: Loss
) -> None:
    lease = await take(stores.leases, LEASE)
    batch = [a_letter(0), a_letter(1)]
    async with stores.losing(loss, "drain"):
        with pytest.raises(DatabaseUnreachable):
            await stores.letters.drain(batch, sink="topic", lease=lease, position="2")
    assert await letters_home(stores) == (2 if loss.is_done else 0)
    assert await stores.notes(LEASE) == ({"position": "2"} if loss.is_done else {})
    assert await stores.letters.drain(batch, sink="topic", lease=lease, position="2") == (0 if loss.is_done else 2)
    assert (await letters_home(stores), await stores.notes(LEASE)) == (2, {"position": "2"})
    assert [len(await stores.history(letter.id)) for letter in batch] == [1, 1]


@conforms
async def test_while_the_server_is_away_nothing_is_drained(stores: StoreWorld) -> None:
    lease = await take(stores.leases, LEASE)
    stores.go_down()
    with pytest.raises(DatabaseUnreachable):
        await stores.letters.drain([a_letter()], sink="topic", lease=lease, position="1")
    stores.come_up()
    assert (await letters_home(stores), await stores.notes(LEASE)) == (0, {})

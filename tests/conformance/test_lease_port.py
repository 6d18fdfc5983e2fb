"""The port `LeaseStore`: one owner at a time, epochs that only grow, and what a lost connection may leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from outboxd.errors import DatabaseUnreachable, LeaseLost
from outboxd.ports import LeaseToken
from tests.conformance.store_world import TTL, Loss, StoreWorld, take
from tests.conformance.telling import conforms


@conforms
async def test_a_lease_has_one_owner_until_it_is_released_or_expires(stores: StoreWorld) -> None:
    leases, others = stores.leases, stores.other.leases
    first = await leases.acquire("job", "a", TTL)
    assert first is not None
    assert (first.token, first.is_clean, first.notes) == (LeaseToken(name="job", owner="a", epoch=1), True, {})
    assert await others.acquire("job", "b", TTL) is None
    await leases.release(first.token, {"orders.new-0": 17})
    second = await others.acquire("job", "b", TTL)
    assert second is not None
    assert (second.token.epoch, second.is_clean, second.notes) == (2, True, {"orders.new-0": 17})
    await stores.later(29)
    assert await leases.acquire("job", "c", TTL) is None
    await stores.later(2)
    third = await leases.acquire("job", "c", TTL)
    assert third is not None
    assert (third.token.epoch, third.is_clean, third.notes) == (3, False, {"orders.new-0": 17})


@conforms
async def test_leases_of_different_names_know_nothing_of_each_other(stores: StoreWorld) -> None:
    one, two = await take(stores.leases, "one"), await take(stores.leases, "two", "b")
    await stores.leases.renew(one, TTL, {"n": 1})
    await stores.leases.release(two, {"n": 2})
    await stores.leases.verify(one)
    assert await stores.notes("one") == {"n": 1}
    assert await stores.notes("two") == {"n": 2}


@pytest.mark.fixes("B024")
@conforms
async def test_what_a_dead_owner_held_is_taken_after_its_time_and_its_name_gives_no_right_back(
    stores: StoreWorld,
) -> None:
    dead = await take(stores.leases, owner="pod-0.1")
    await stores.later(31)
    taken = await stores.other.leases.acquire("job", "pod-0.2", TTL)
    assert taken is not None
    assert not taken.is_clean
    for late in (stores.leases.verify(dead), stores.leases.renew(dead, TTL, {"n": 1})):
        with pytest.raises(LeaseLost):
            await late
    await stores.leases.release(dead, {"n": 1})
    await stores.other.leases.verify(taken.token)
    assert await stores.notes("job") == {}


@conforms
async def test_an_owner_that_takes_its_lease_anew_gets_the_next_epoch_and_loses_the_last(stores: StoreWorld) -> None:
    leases = stores.leases
    old = await take(leases)
    await leases.renew(old, TTL, {"n": 1})
    again = await leases.acquire("job", "a", TTL)
    assert again is not None
    assert (again.token.epoch, again.is_clean, again.notes) == (2, False, {"n": 1})
    for late in (leases.verify(old), leases.renew(old, TTL)):
        with pytest.raises(LeaseLost):
            await late
    await leases.release(old, {})
    await leases.verify(again.token)
    assert await stores.notes("job") == {"n": 1}


@conforms
async def test_a_token_of_the_right_epoch_under_another_name_or_owner_is_worth_nothing(stores: StoreWorld) -> None:
    token = await take(stores.leases)
    forged = [
        LeaseToken(name="job", owner="b", epoch=1),
        LeaseToken(name="other", owner="a", epoch=1),
        LeaseToken(name="job", owner="a", epoch=2),
    ]
    for wrong in forged:
        for call in (stores.leases.verify(wrong), stores.leases.renew(wrong, TTL, {"n": 1})):
            with pytest.raises(LeaseLost):
                await call
        await stores.leases.release(wrong, {"n": 1})
    await stores.leases.verify(token)
    assert await stores.notes("job") == {}


@conforms
async def test_only_one_of_many_gets_a_new_an_expired_or_a_free_lease(stores: StoreWorld) -> None:
    both = (stores.leases, stores.other.leases)
    for round_ in range(1, 6):
        found = await asyncio.gather(*(both[n % 2].acquire("job", f"o{n}-{round_}", TTL) for n in range(8)))
        taken = [lease for lease in found if lease is not None]
        assert [lease.token.epoch for lease in taken] == [round_]
        assert taken[0].is_clean is (round_ in {1, 3, 5})
        if round_ % 2:
            await stores.later(31)
        else:
            await stores.leases.release(taken[0].token, {})


@conforms
async def test_of_a_late_renewal_and_a_take_over_in_the_same_moment_one_wins(stores: StoreWorld) -> None:
    token = await take(stores.leases, owner="o")
    for round_ in range(8):
        await stores.later(31)
        renewing = stores.leases.renew(token, TTL, {"round": round_})
        taking = stores.other.leases.acquire("job", f"o{round_}", TTL)
        renewed, taken = await asyncio.gather(renewing, taking, return_exceptions=True)
        assert not isinstance(taken, BaseException)
        if taken is None:
            assert renewed is None
            await stores.leases.verify(token)
            continue
        assert isinstance(renewed, LeaseLost)
        with pytest.raises(LeaseLost):
            await stores.leases.verify(token)
        token = taken.token


@conforms
async def test_renewing_lays_its_notes_over_the_stored_ones_and_releasing_replaces_them(stores: StoreWorld) -> None:
    leases = stores.leases
    token = await take(leases)
    await leases.renew(token, TTL, {"t-0": 5, "position": "x"})
    await leases.renew(token, TTL)
    await leases.renew(token, TTL, {})
    await leases.renew(token, TTL, {"t-1": 2**62, "position": ""})
    assert await stores.notes("job") == {"t-0": 5, "t-1": 2**62, "position": ""}
    await leases.release(token, {"t-0": 9})
    successor = await leases.acquire("job", "b", TTL)
    assert successor is not None
    assert successor.notes == {"t-0": 9}
    assert successor.token.epoch == 2, "renewing keeps the epoch"


@conforms
async def test_a_lease_past_its_time_does_not_verify_but_is_renewed_while_nobody_took_it(stores: StoreWorld) -> None:
    token = await take(stores.leases)
    await stores.later(31)
    with pytest.raises(LeaseLost):
        await stores.leases.verify(token)
    await stores.leases.renew(token, TTL)
    await stores.leases.verify(token)
    assert await stores.other.leases.acquire("job", "b", TTL) is None


@conforms
async def test_a_renewal_counts_from_now(stores: StoreWorld) -> None:
    token = await take(stores.leases)
    for _ in range(3):
        await stores.later(20)
        await stores.leases.renew(token, TTL)
    await stores.leases.renew(token, timedelta(seconds=5))
    await stores.later(6)
    assert await stores.other.leases.acquire("job", "b", TTL) is not None


@conforms
async def test_a_lease_past_its_time_is_released_cleanly_while_nobody_took_it(stores: StoreWorld) -> None:
    token = await take(stores.leases)
    await stores.later(31)
    await stores.leases.release(token, {"n": 1})
    await stores.leases.release(token, {"n": 2})
    found = await stores.other.leases.acquire("job", "b", TTL)
    assert found is not None
    assert (found.token.epoch, found.is_clean, found.notes) == (2, True, {"n": 1})


@conforms
async def test_a_released_lease_is_nobodys(stores: StoreWorld) -> None:
    token = await take(stores.leases)
    await stores.leases.release(token, {})
    for call in (stores.leases.verify(token), stores.leases.renew(token, TTL)):
        with pytest.raises(LeaseLost):
            await call
    assert await stores.leases.owned("") == {}


@conforms
async def test_members_are_counted_while_they_live(stores: StoreWorld) -> None:
    leases, others = stores.leases, stores.other.leases
    assert await leases.join("relay:x", "a", TTL) == 1
    assert await others.join("relay:x", "b", TTL) == 2
    assert await leases.join("relay:y", "c", TTL) == 1
    await stores.later(20)
    assert await leases.join("relay:x", "a", TTL) == 2
    await stores.later(20)
    assert await leases.join("relay:x", "a", TTL) == 1
    assert await others.join("relay:x", "b", TTL) == 2
    await others.leave("relay:x", "b")
    await others.leave("relay:x", "b")
    await others.leave("relay:z", "b")
    assert await leases.join("relay:x", "a", TTL) == 1
    await stores.later(3600)
    assert await leases.join("relay:x", "d", TTL) == 1


@conforms
async def test_who_joins_is_counted_however_short_its_life(stores: StoreWorld) -> None:
    assert await stores.leases.join("relay:x", "a", timedelta()) == 1
    assert await stores.other.leases.join("relay:x", "b", TTL) == 1


@conforms
async def test_owned_names_live_leases_of_a_prefix(stores: StoreWorld) -> None:
    for name in ("relay:1_:0", "relay:1_:1", "relay:1x:0"):
        await take(stores.leases, name)
    await stores.leases.release(await take(stores.leases, "relay:1_:2"), {})
    await stores.later(31)
    await take(stores.other.leases, "relay:1_:0", "b")
    await take(stores.leases, "relay:1x:0")
    owned = await stores.leases.owned("relay:1_:")
    assert {name: owner for name, (owner, _) in owned.items()} == {"relay:1_:0": "b"}
    assert 20 < owned["relay:1_:0"][1] <= 30
    assert await stores.leases.owned("relay:1%") == {}


# -- statements that travel on after their caller was told of a lost connection


@conforms
async def test_a_renewal_that_is_carried_out_late_takes_no_newer_note_away(stores: StoreWorld) -> None:
    token = await take(stores.leases)
    async with stores.belated("renew"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.renew(token, TTL, {"t-0": 4})
    await stores.leases.renew(token, TTL, {"t-0": 5, "t-1": 7})
    await stores.deliver()
    assert await stores.notes("job") == {"t-0": 4, "t-1": 7}


@conforms
async def test_a_renewal_or_release_that_arrives_after_a_take_over_changes_nothing(stores: StoreWorld) -> None:
    leases = stores.leases
    calls: dict[str, Callable[[LeaseToken], Awaitable[None]]] = {
        "renew": lambda token: leases.renew(token, timedelta(hours=1), {"n": 1}),
        "release": lambda token: leases.release(token, {"n": 1}),
    }
    for call, made in calls.items():
        token = await take(leases, call)
        async with stores.belated(call):
            with pytest.raises(DatabaseUnreachable):
                await made(token)
        await stores.later(31)
        successor = await take(stores.other.leases, call, "b")
        await stores.deliver()
        await stores.other.leases.verify(successor)
        assert await stores.notes(call) == {}
        assert (await stores.leases.owned(call))[call][1] <= 30


@conforms
async def test_a_lease_that_is_taken_late_takes_the_one_that_its_owner_got_meanwhile(stores: StoreWorld) -> None:
    async with stores.belated("acquire"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.acquire("job", "a", TTL)
    token = await take(stores.leases)
    assert token.epoch == 1
    await stores.deliver()
    with pytest.raises(LeaseLost):
        await stores.leases.verify(token)
    again = await stores.leases.acquire("job", "a", TTL)
    assert again is not None
    assert (again.token.epoch, again.is_clean) == (3, False)


@conforms
async def test_a_lease_that_is_taken_late_is_not_taken_from_somebody_else(stores: StoreWorld) -> None:
    async with stores.belated("acquire"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.acquire("job", "a", TTL)
    token = await take(stores.other.leases, owner="b")
    await stores.deliver()
    await stores.other.leases.verify(token)


# -- connections that are lost in the middle


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_lease_whose_answer_was_lost_is_taken_again(stores: StoreWorld, loss: Loss) -> None:
    async with stores.losing(loss, "acquire"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.acquire("job", "a", TTL)
    is_held = await stores.other.leases.acquire("job", "b", TTL) is None
    assert is_held is loss.is_done
    if is_held:
        assert (await take(stores.leases)).epoch == 2


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_renewal_whose_answer_was_lost_was_made_or_not(stores: StoreWorld, loss: Loss) -> None:
    token = await take(stores.leases)
    await stores.later(20)
    async with stores.losing(loss, "renew"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.renew(token, TTL, {"n": 1})
    assert await stores.notes("job") == ({"n": 1} if loss.is_done else {})
    assert ((await stores.leases.owned(""))["job"][1] > 15) is loss.is_done
    await stores.leases.renew(token, TTL, {"n": 2})
    assert await stores.notes("job") == {"n": 2}


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_release_whose_answer_was_lost_was_made_or_not(stores: StoreWorld, loss: Loss) -> None:
    token = await take(stores.leases)
    async with stores.losing(loss, "release"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.release(token, {"n": 1})
    assert (await stores.leases.owned("") == {}) is loss.is_done
    await stores.leases.release(token, {"n": 1})
    found = await stores.other.leases.acquire("job", "b", TTL)
    assert found is not None
    assert (found.token.epoch, found.is_clean, found.notes) == (2, True, {"n": 1})


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_member_whose_answer_was_lost_came_or_went_or_not(stores: StoreWorld, loss: Loss) -> None:
    async with stores.losing(loss, "join"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.join("relay:x", "a", TTL)
    assert await stores.other.leases.join("relay:x", "b", TTL) == (2 if loss.is_done else 1)
    assert await stores.leases.join("relay:x", "a", TTL) == 2
    async with stores.losing(loss, "leave"):
        with pytest.raises(DatabaseUnreachable):
            await stores.leases.leave("relay:x", "a")
    assert await stores.other.leases.join("relay:x", "b", TTL) == (1 if loss.is_done else 2)


@conforms
async def test_while_the_server_is_away_every_call_says_so_and_nothing_is_changed(stores: StoreWorld) -> None:
    leases = stores.leases
    token = await take(leases)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: leases.join("relay:x", "a", TTL),
        lambda: leases.leave("relay:x", "a"),
        lambda: leases.acquire("job", "a", TTL),
        lambda: leases.renew(token, TTL, {"n": 1}),
        lambda: leases.verify(token),
        lambda: leases.release(token, {"n": 1}),
        lambda: leases.owned(""),
    ]
    stores.go_down()
    for call in calls:
        with pytest.raises(DatabaseUnreachable):
            await call()
    stores.come_up()
    await leases.verify(token)
    assert await stores.notes("job") == {}

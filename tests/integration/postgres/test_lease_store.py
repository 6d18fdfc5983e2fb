"""Leases and members on a real server, by its clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outboxd.errors import LeaseLost
from outboxd.postgres.lease_store import PostgresLeaseStore
from tests.integration.postgres.conftest import Db

TTL = timedelta(seconds=30)


async def expire(db: Db, name: str) -> None:
    await db.execute("update outboxd.lease set until = clock_timestamp() - interval '1 second' where name = $1", name)


async def test_a_lease_has_one_owner_until_it_is_released_or_expires(leases: PostgresLeaseStore, db: Db) -> None:
    first = await leases.acquire("job", "a", TTL)
    assert first is not None
    assert (first.token.epoch, first.is_clean, first.notes) == (1, True, {})
    assert await leases.acquire("job", "b", TTL) is None
    await leases.release(first.token, {"orders.new-0": 17})
    second = await leases.acquire("job", "b", TTL)
    assert second is not None
    assert (second.token.epoch, second.is_clean, second.notes) == (2, True, {"orders.new-0": 17})
    await expire(db, "job")
    third = await leases.acquire("job", "c", TTL)
    assert third is not None
    assert (third.token.epoch, third.is_clean) == (3, False)


@pytest.mark.fixes("B024")
async def test_what_a_dead_owner_held_is_taken_after_its_time_and_its_name_gives_no_right_back(
    leases: PostgresLeaseStore, db: Db
) -> None:
    dead = await leases.acquire("job", "pod-0.1", TTL)
    assert dead is not None
    await expire(db, "job")
    taken = await leases.acquire("job", "pod-0.2", TTL)
    assert taken is not None
    assert not taken.is_clean
    for late in (leases.verify(dead.token), leases.renew(dead.token, TTL)):
        with pytest.raises(LeaseLost):
            await late
    await leases.release(dead.token, {})
    await leases.verify(taken.token)


async def test_only_one_of_many_gets_a_new_an_expired_or_a_free_lease(leases: PostgresLeaseStore, db: Db) -> None:
    for round_ in range(1, 6):
        found = await asyncio.gather(*(leases.acquire("job", f"o{n}-{round_}", TTL) for n in range(8)))
        taken = [lease for lease in found if lease is not None]
        assert [lease.token.epoch for lease in taken] == [round_]
        if round_ % 2:
            await expire(db, "job")
        else:
            await leases.release(taken[0].token, {})


async def test_renewing_keeps_the_epoch_and_the_notes_unless_new_ones_are_given(leases: PostgresLeaseStore) -> None:
    lease = await leases.acquire("job", "a", TTL)
    assert lease is not None
    await leases.renew(lease.token, TTL, {"t-0": 5, "position": "x"})
    await leases.renew(lease.token, TTL)
    again = await leases.acquire("job", "a", TTL)
    assert again is not None
    assert again.notes == {"t-0": 5, "position": "x"}
    assert again.token.epoch == 2


async def test_an_expired_lease_does_not_verify_but_is_renewed_while_nobody_took_it(
    leases: PostgresLeaseStore, db: Db
) -> None:
    lease = await leases.acquire("job", "a", TTL)
    assert lease is not None
    await expire(db, "job")
    with pytest.raises(LeaseLost):
        await leases.verify(lease.token)
    await leases.renew(lease.token, TTL)
    await leases.verify(lease.token)


async def test_members_are_counted_while_they_live(leases: PostgresLeaseStore, db: Db) -> None:
    assert await leases.join("relay:x", "a", TTL) == 1
    assert await leases.join("relay:x", "b", TTL) == 2
    assert await leases.join("relay:y", "c", TTL) == 1
    await db.execute("update outboxd.member set until = clock_timestamp() - interval '1 hour' where member = 'b'")
    assert await leases.join("relay:x", "a", TTL) == 1
    assert await leases.join("relay:x", "b", TTL) == 2
    await leases.leave("relay:x", "b")
    assert await leases.join("relay:x", "a", TTL) == 1


async def test_owned_names_live_leases_of_a_prefix(leases: PostgresLeaseStore, db: Db) -> None:
    for name in ("relay:1_:0", "relay:1_:1", "relay:1x:0", "relay:1_:2"):
        assert await leases.acquire(name, "a", TTL) is not None
    await expire(db, "relay:1_:1")
    free = await leases.acquire("relay:1_:1", "a", TTL)
    assert free is not None
    await leases.release(free.token, {})
    await expire(db, "relay:1_:2")
    owned = await leases.owned("relay:1_:")
    assert set(owned) == {"relay:1_:0"}
    owner, left = owned["relay:1_:0"]
    assert owner == "a"
    assert 0 < left <= 30


async def test_a_renewal_that_is_carried_out_late_takes_no_newer_note_away(leases: PostgresLeaseStore) -> None:
    lease = await leases.acquire("relay:x:0", "a", TTL)
    assert lease is not None
    await leases.renew(lease.token, TTL, {"t-0": 5, "t-1": 7})
    await leases.renew(lease.token, TTL, {"t-0": 4})  # asked before the other one, carried out after it
    again = await leases.acquire("relay:x:0", "a", TTL)
    assert again is not None
    assert again.notes == {"t-0": 4, "t-1": 7}
    await leases.release(again.token, {"t-0": 9})
    successor = await leases.acquire("relay:x:0", "b", TTL)
    assert successor is not None
    assert successor.notes == {"t-0": 9}

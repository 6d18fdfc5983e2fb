"""Replay jobs on a real server: a frozen set, one claim per letter, claims of the dead given back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

import pytest

from outboxd.errors import LetterUnknown, MoveRefused
from outboxd.ports import ReplayItem
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.records import Letter, LetterStatus, Stage, TopicPartition
from tests.integration.postgres.conftest import Db, ids, letter

PARTITION = TopicPartition("orders.new", 0)


async def stored(letters: PostgresLetterStore, count: int = 3) -> list[Letter]:
    made = [letter(n) for n in range(count)]
    await letters.store(made, sink="home")
    return made


async def claim(
    letters: PostgresLetterStore, owner: str = "a", *, limit: int = 100, partition: TopicPartition = PARTITION
) -> Sequence[ReplayItem]:
    return await letters.claim(
        pipeline="establishment", group="establishment", partitions=[partition], owner=owner, limit=limit
    )


async def test_a_job_runs_each_letter_of_its_set_in_the_records_order(letters: PostgresLetterStore) -> None:
    made = await stored(letters)
    job = await letters.create_replay(ids(made), actor="ann")
    assert (job.state, job.total, job.sent, job.mode, job.actor) == ("WAITING", 3, 0, "in_place", "ann")
    assert job.reason
    assert list(job.letters) == ids(made)
    assert await claim(letters, partition=TopicPartition("orders.new", 1)) == []
    first = await claim(letters, limit=2)
    assert [(item.letter, item.attempt) for item in first] == [(made[0], 1), (made[1], 1)]
    await letters.finish(first[0], resolved=True, error=None)
    await letters.finish(first[1], resolved=False, error="again\x00")
    (third,) = await claim(letters)
    assert (await letters.replay(job.id)).state == "RUNNING"
    await letters.give_back(third)
    assert (await letters.get(made[2].id)).status is LetterStatus.NEW
    (third,) = await claim(letters)
    assert third.attempt == 2
    await letters.finish(third, resolved=True, error=None)
    await letters.finish(third, resolved=False, error="said again after a lost answer")
    done = await letters.replay(job.id)
    assert (done.state, done.sent, done.resolved, done.failed) == ("DONE", 3, 2, 1)
    assert [(await letters.get(item.id)).status for item in made] == ["RESOLVED", "FAILED", "RESOLVED"]


async def test_a_failed_letter_is_replayed_by_another_job_as_the_next_attempt(letters: PostgresLetterStore) -> None:
    (made,) = await stored(letters, 1)
    for attempt in (1, 2):
        await letters.create_replay([made.id], actor="ann")
        (item,) = await claim(letters)
        assert item.attempt == attempt
        await letters.finish(item, resolved=False, error="no")
    view = await letters.get(made.id)
    assert (view.status, view.replay_count) == (LetterStatus.FAILED, 2)


async def test_many_claimants_run_each_letter_once(letters: PostgresLetterStore) -> None:
    made = await stored(letters, 60)
    await letters.create_replay(ids(made), actor="ann")
    ran: list[Letter] = []

    async def claimant(owner: str) -> None:
        while items := await claim(letters, owner, limit=5):
            for item in items:
                ran.append(item.letter)
                await letters.finish(item, resolved=True, error=None)

    await asyncio.gather(*(claimant(f"o{n}") for n in range(8)))
    assert sorted(ids(ran)) == sorted(ids(made))


async def test_many_operators_with_one_set_make_one_job(letters: PostgresLetterStore) -> None:
    made = await stored(letters, 20)
    jobs = await asyncio.gather(
        *(letters.create_replay(ids(made), actor=f"op{n}") for n in range(10)), return_exceptions=True
    )
    assert [type(job) for job in jobs].count(MoveRefused) == 9


async def test_letters_that_cannot_be_replayed_are_named(letters: PostgresLetterStore) -> None:
    closed, unread, fine = letter(1), letter(2, stage=Stage.FETCH), letter(3)
    await letters.store([closed, unread, fine], sink="home")
    await letters.move([closed.id], LetterStatus.DISCARDED, actor="a", reason=None)
    for bad in (closed, unread):
        with pytest.raises(MoveRefused, match=str(bad.id)):
            await letters.create_replay([fine.id, bad.id], actor="ann")
    with pytest.raises(LetterUnknown):
        await letters.create_replay([fine.id, uuid4()], actor="ann")
    with pytest.raises(LetterUnknown):
        await letters.create_replay([], actor="ann")
    with pytest.raises(LetterUnknown):
        await letters.replay(uuid4())
    assert await claim(letters) == []


async def test_a_letter_that_was_closed_before_its_turn_is_skipped(letters: PostgresLetterStore) -> None:
    one, two = await stored(letters, 2)
    job = await letters.create_replay([one.id, two.id], actor="ann")
    await letters.move([one.id], LetterStatus.DISCARDED, actor="ann", reason=None)
    (item,) = await claim(letters)
    assert item.letter == two
    await letters.finish(item, resolved=True, error=None)
    done = await letters.replay(job.id)
    assert (done.state, done.resolved) == ("DONE", 1)
    assert "closed before" in str(done.reason)


@pytest.mark.fixes("B024")
async def test_the_claims_of_a_silent_owner_are_given_back_and_its_late_word_decides_nothing(
    letters: PostgresLetterStore, db: Db
) -> None:
    (made,) = await stored(letters, 1)
    await letters.create_replay([made.id], actor="ann")
    (dead,) = await claim(letters, "dead")
    assert await claim(letters, "other") == []
    await db.execute("update outboxd.member set until = clock_timestamp() - interval '1 s' where member = 'dead'")
    (item,) = await claim(letters, "other")
    assert item.attempt == 2
    await letters.finish(dead, resolved=False, error="late")
    await letters.give_back(dead)
    assert (await letters.get(made.id)).status is LetterStatus.PROCESSING
    await letters.finish(item, resolved=True, error=None)
    assert (await letters.get(made.id)).status is LetterStatus.RESOLVED


async def test_a_heartbeat_keeps_claims(letters: PostgresLetterStore, db: Db) -> None:
    (made,) = await stored(letters, 1)
    await letters.create_replay([made.id], actor="ann")
    await claim(letters, "slow")
    await db.execute("update outboxd.member set until = clock_timestamp() - interval '1 s' where member = 'slow'")
    await letters.heartbeat("slow")
    assert await claim(letters, "other") == []


async def test_a_relays_letter_has_no_group_and_partition_minus_one(letters: PostgresLetterStore) -> None:
    row = letter(group=None, partition=-1, offset=-1, pipeline="outbox", outbox_id="x:1", stage=Stage.PUBLISH)
    await letters.store([row], sink="home")
    await letters.create_replay([row.id], actor="ann")
    (item,) = await letters.claim(
        pipeline="outbox", group="", partitions=[TopicPartition("orders.new", -1)], owner="a", limit=5
    )
    assert item.letter == row

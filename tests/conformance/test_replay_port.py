"""The port `LetterStore`, replays: a frozen set, one claim per letter, and the claims of the silent given back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from outboxd.errors import DatabaseUnreachable, LetterUnknown, MoveRefused
from outboxd.ports import LetterStore, ReplayItem, ReplayJob
from outboxd.records import Letter, LetterStatus, Stage, TopicPartition
from tests.conformance.store_world import Loss, StoreWorld, a_letter
from tests.conformance.telling import conforms

S = LetterStatus
PARTITION = TopicPartition("orders.new", 0)


async def stored(letters: LetterStore, count: int = 3) -> list[Letter]:
    made = [a_letter(number) for number in range(count)]
    await letters.store(made, sink="home")
    return made


def ids(letters: Sequence[Letter]) -> list[UUID]:
    return [letter.id for letter in letters]


async def claim(
    letters: LetterStore, owner: str = "a", *, limit: int = 100, partitions: Sequence[TopicPartition] = (PARTITION,)
) -> Sequence[ReplayItem]:
    return await letters.claim(
        pipeline="establishment", group="establishment", partitions=partitions, owner=owner, limit=limit
    )


async def statuses(world: StoreWorld, made: Sequence[Letter]) -> list[LetterStatus]:
    return [(await world.letters.get(letter.id)).status for letter in made]


def counts(job: ReplayJob) -> tuple[str, int, int, int, int]:
    return job.state, job.total, job.sent, job.resolved, job.failed


@conforms
async def test_a_job_runs_each_letter_of_its_set_in_the_records_order(stores: StoreWorld) -> None:
    letters, made = stores.letters, await stored(stores.letters)
    job = await letters.create_replay([*ids(made)[::-1], made[0].id], actor="ann\x00")
    assert counts(job) == ("WAITING", 3, 0, 0, 0)
    assert (job.mode, job.actor, list(job.letters)) == ("in_place", "ann\ufffd", ids(made))
    assert job.reason
    assert await stores.other.letters.replay(job.id) == job
    assert list(await claim(letters, partitions=[TopicPartition("orders.new", 1)])) == []
    first = await claim(letters, limit=2)
    assert [(item.job_id, item.letter, item.attempt) for item in first] == [(job.id, made[0], 1), (job.id, made[1], 1)]
    assert counts(await letters.replay(job.id)) == ("RUNNING", 3, 2, 0, 0)
    assert await statuses(stores, made) == [S.PROCESSING, S.PROCESSING, S.NEW]
    await letters.finish(first[0], resolved=True, error=None)
    await letters.finish(first[1], resolved=False, error="again\x00")
    assert counts(await letters.replay(job.id)) == ("RUNNING", 3, 2, 1, 1)
    (third,) = await claim(letters)
    await letters.finish(third, resolved=True, error=None)
    assert counts(await letters.replay(job.id)) == ("DONE", 3, 3, 2, 1)
    assert await statuses(stores, made) == [S.RESOLVED, S.FAILED, S.RESOLVED]
    assert (await stores.history(made[1].id))[-1].reason == "again\ufffd"
    assert list(await claim(letters)) == []


@conforms
async def test_a_run_counts_as_an_attempt_and_a_failure_as_the_last_one(stores: StoreWorld) -> None:
    made = await stored(stores.letters, 2)
    await stores.letters.create_replay(ids(made), actor="ann")
    for item, resolved in zip(await claim(stores.letters), (True, False), strict=True):
        await stores.letters.finish(item, resolved=resolved, error=None if resolved else "no")
    resolved_view, failed_view = [await stores.letters.get(letter.id) for letter in made]
    assert (resolved_view.letter.attempts, failed_view.letter.attempts) == (2, 2)
    assert (resolved_view.replay_count, failed_view.replay_count) == (1, 1)
    assert resolved_view.letter.last_failed_at == made[0].last_failed_at < failed_view.letter.last_failed_at


@conforms
async def test_claims_of_all_jobs_come_in_the_records_order(stores: StoreWorld) -> None:
    made = [a_letter(offset, partition=partition) for offset in range(3) for partition in range(2)]
    await stores.letters.store(made, sink="home")
    for number in (1, 0):
        await stores.letters.create_replay(ids(made[number::2]), actor="ann")
    later = a_letter(-1)
    await stores.letters.store([later], sink="home")
    await stores.letters.create_replay([later.id], actor="ann")
    items = await claim(stores.letters, partitions=[TopicPartition("orders.new", 1), PARTITION])
    places = [(item.letter.partition, item.letter.offset) for item in items]
    assert places == [(0, -1), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]


@conforms
async def test_letters_of_others_are_never_claimed(stores: StoreWorld) -> None:
    others = [
        a_letter(0, pipeline="other"),
        a_letter(1, group="other"),
        a_letter(2, group=None),
        a_letter(3, partition=7),
        a_letter(4, topic="orders.old"),
    ]
    mine = a_letter(5)
    await stores.letters.store([*others, mine], sink="home")
    await stores.letters.create_replay(ids([*others, mine]), actor="ann")
    assert list(await claim(stores.letters, partitions=[])) == []
    assert list(await claim(stores.letters, limit=0)) == []
    assert [item.letter for item in await claim(stores.letters)] == [mine]
    assert await statuses(stores, others) == [S.NEW] * 5


@conforms
async def test_a_relays_letter_has_no_group_and_partition_minus_one(stores: StoreWorld) -> None:
    row = a_letter(-1, group=None, partition=-1, pipeline="outbox", outbox_id="x:1", stage=Stage.PUBLISH)
    await stores.letters.store([row], sink="home")
    await stores.letters.create_replay([row.id], actor="ann")
    (item,) = await stores.letters.claim(
        pipeline="outbox", group="", partitions=[TopicPartition("orders.new", -1)], owner="a", limit=5
    )
    assert item.letter == row


@conforms
async def test_a_failed_letter_is_replayed_by_another_job_as_the_next_attempt(stores: StoreWorld) -> None:
    (made,) = await stored(stores.letters, 1)
    items: list[ReplayItem] = []
    for _ in range(2):
        await stores.letters.create_replay([made.id], actor="ann")
        items += await claim(stores.letters)
        await stores.letters.finish(items[-1], resolved=False, error="no")
    assert [item.attempt for item in items] == [1, 2]
    view = await stores.letters.get(made.id)
    assert (view.status, view.replay_count) == (S.FAILED, 2)
    for item in items:
        with pytest.raises(MoveRefused):
            await stores.letters.finish(item, resolved=True, error=None)
    assert (await stores.letters.get(made.id)).status is S.FAILED


@conforms
async def test_letters_that_cannot_be_replayed_are_named_and_the_others_stay_free(stores: StoreWorld) -> None:
    letters = stores.letters
    closed, unread, taken, fine = a_letter(1), a_letter(2, stage=Stage.FETCH), a_letter(3), a_letter(4)
    await letters.store([closed, unread, taken, fine], sink="home")
    await letters.move([closed.id], S.DISCARDED, actor="a", reason=None)
    await letters.create_replay([taken.id], actor="ann")
    for bad in (closed, unread, taken):
        with pytest.raises(MoveRefused, match=str(bad.id)):
            await letters.create_replay([fine.id, bad.id], actor="ann")
    for unknown in ([fine.id, uuid4()], []):
        with pytest.raises(LetterUnknown):
            await letters.create_replay(unknown, actor="ann")
    with pytest.raises(LetterUnknown):
        await letters.replay(uuid4())
    assert [item.letter for item in await claim(letters)] == [taken]
    await letters.create_replay([fine.id], actor="ann")


@conforms
async def test_a_letter_that_was_closed_or_dropped_before_its_turn_is_skipped(stores: StoreWorld) -> None:
    discarded, dropped, left = await stored(stores.letters)
    job = await stores.letters.create_replay(ids([discarded, dropped, left]), actor="ann")
    await stores.letters.move([discarded.id], S.DISCARDED, actor="ann", reason=None)
    await stores.drop(dropped.id)
    assert [item.letter for item in await claim(stores.letters, limit=1)] == []
    (item,) = await claim(stores.letters)
    assert item.letter == left
    await stores.letters.finish(item, resolved=True, error=None)
    done = await stores.letters.replay(job.id)
    assert counts(done) == ("DONE", 3, 1, 1, 0)
    assert done.reason == "2 letters were closed before their turn"
    await stores.letters.move([discarded.id], S.NEW, actor="ann", reason=None)
    await stores.letters.create_replay([discarded.id], actor="ann")
    assert [item.letter for item in await claim(stores.letters)] == [discarded]


@conforms
async def test_a_letter_that_is_dropped_while_it_runs_ends_its_item_all_the_same(stores: StoreWorld) -> None:
    one, two = await stored(stores.letters, 2)
    job = await stores.letters.create_replay(ids([one, two]), actor="ann")
    first, second = await claim(stores.letters)
    for letter in (one, two):
        await stores.drop(letter.id)
    await stores.letters.finish(first, resolved=True, error=None)
    await stores.letters.give_back(second)
    assert counts(await stores.letters.replay(job.id)) == ("RUNNING", 2, 1, 1, 0)
    assert list(await claim(stores.letters)) == []
    assert counts(await stores.letters.replay(job.id)) == ("DONE", 2, 1, 1, 0)


# -- giving back


@conforms
async def test_a_claim_that_is_given_back_leaves_its_letter_where_it_was(stores: StoreWorld) -> None:
    made = await stored(stores.letters, 2)
    await stores.letters.create_replay([made[0].id], actor="ann")
    (item,) = await claim(stores.letters)
    await stores.letters.finish(item, resolved=False, error="no")
    job = await stores.letters.create_replay(ids(made), actor="ann")
    items = await claim(stores.letters)
    for item in items:
        await stores.letters.give_back(item)
        await stores.letters.give_back(item)
    assert await statuses(stores, made) == [S.FAILED, S.NEW]
    assert counts(await stores.letters.replay(job.id)) == ("WAITING", 2, 0, 0, 0)
    again = await claim(stores.other.letters, "b")
    assert [(item.letter.id, item.attempt) for item in again] == [(made[0].id, 3), (made[1].id, 2)]
    for item in items:
        await stores.letters.give_back(item)
        with pytest.raises(MoveRefused):
            await stores.letters.finish(item, resolved=True, error=None)
    assert await statuses(stores, made) == [S.PROCESSING, S.PROCESSING]


@pytest.mark.fixes("B024")
@conforms
async def test_the_claims_of_a_silent_owner_are_given_back_and_its_late_word_decides_nothing(
    stores: StoreWorld,
) -> None:
    (made,) = await stored(stores.letters, 1)
    await stores.letters.create_replay([made.id], actor="ann")
    (dead,) = await claim(stores.letters, "dead")
    await stores.later(59)
    assert list(await claim(stores.other.letters, "other")) == []
    await stores.later(2)
    (item,) = await claim(stores.other.letters, "other")
    assert item.attempt == 2
    with pytest.raises(MoveRefused):
        await stores.letters.finish(dead, resolved=False, error="late")
    await stores.letters.give_back(dead)
    assert await statuses(stores, [made]) == [S.PROCESSING]
    await stores.other.letters.finish(item, resolved=True, error=None)
    assert await statuses(stores, [made]) == [S.RESOLVED]
    moves = [(move.before, move.after) for move in await stores.history(made.id)]
    assert moves[1:] == [
        (S.NEW, S.PROCESSING),
        (S.PROCESSING, S.NEW),
        (S.NEW, S.PROCESSING),
        (S.PROCESSING, S.RESOLVED),
    ]


@conforms
async def test_a_heartbeat_or_another_claim_keeps_claims(stores: StoreWorld) -> None:
    (made,) = await stored(stores.letters, 1)
    await stores.letters.create_replay([made.id], actor="ann")
    assert len(await claim(stores.letters, "slow")) == 1
    for _ in range(2):
        await stores.later(50)
        await stores.letters.heartbeat("slow")
    await stores.later(50)
    assert list(await claim(stores.letters, "slow")) == []
    await stores.later(50)
    await stores.letters.heartbeat("another")
    assert list(await claim(stores.other.letters, "other")) == []
    await stores.later(11)
    assert len(await claim(stores.other.letters, "other")) == 1


# -- two at once


@conforms
async def test_many_claimants_run_each_letter_once(stores: StoreWorld) -> None:
    made = await stored(stores.letters, 40)
    job = await stores.letters.create_replay(ids(made), actor="ann")
    ran: list[UUID] = []

    async def claimant(number: int) -> None:
        letters = (stores.letters, stores.other.letters)[number % 2]
        while items := await claim(letters, f"o{number}", limit=4):
            for item in items:
                ran.append(item.letter.id)
                await letters.finish(item, resolved=True, error=None)

    await asyncio.gather(*(claimant(number) for number in range(6)))
    assert sorted(ran) == sorted(ids(made))
    assert counts(await stores.letters.replay(job.id)) == ("DONE", 40, 40, 40, 0)


@conforms
async def test_many_operators_with_one_set_make_one_job(stores: StoreWorld) -> None:
    made = await stored(stores.letters, 10)
    both = (stores.letters, stores.other.letters)
    jobs = await asyncio.gather(
        *(both[n % 2].create_replay(ids(made), actor=f"op{n}") for n in range(10)), return_exceptions=True
    )
    assert [type(job) for job in jobs].count(MoveRefused) == 9
    assert len(await claim(stores.letters)) == 10


@conforms
async def test_of_a_claim_and_a_move_by_hand_at_once_one_comes_first(stores: StoreWorld) -> None:
    for _ in range(5):
        (made,) = await stored(stores.letters, 1)
        await stores.letters.create_replay([made.id], actor="ann")
        moved, claimed = await asyncio.gather(
            stores.letters.move([made.id], S.DISCARDED, actor="ann", reason=None),
            claim(stores.other.letters),
            return_exceptions=True,
        )
        assert not isinstance(claimed, BaseException)
        assert await statuses(stores, [made]) == [S.PROCESSING if claimed else S.DISCARDED]
        assert isinstance(moved, MoveRefused) if claimed else moved == 1


# -- connections that are lost in the middle


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_job_whose_connection_is_lost_was_made_whole_or_not_at_all(stores: StoreWorld, loss: Loss) -> None:
    made = await stored(stores.letters)
    async with stores.losing(loss, "create_replay"):
        with pytest.raises(DatabaseUnreachable):
            await stores.letters.create_replay(ids(made), actor="ann")
    if loss.is_done:
        with pytest.raises(MoveRefused):
            await stores.letters.create_replay(ids(made), actor="ann")
    else:
        await stores.letters.create_replay(ids(made), actor="ann")
    assert [item.letter for item in await claim(stores.letters)] == made


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_claims_whose_connection_is_lost_come_back_when_their_claimant_is_silent(
    stores: StoreWorld, loss: Loss
) -> None:
    made = await stored(stores.letters)
    await stores.letters.create_replay(ids(made), actor="ann")
    async with stores.losing(loss, "claim"):
        with pytest.raises(DatabaseUnreachable):
            await claim(stores.letters)
    assert await statuses(stores, made) == [S.PROCESSING if loss.is_done else S.NEW] * 3
    await stores.later(61)
    items = await claim(stores.other.letters, "b")
    assert [(item.letter, item.attempt) for item in items] == [(letter, 2 if loss.is_done else 1) for letter in made]


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_an_outcome_whose_connection_is_lost_is_told_again_and_counts_once(
    stores: StoreWorld, loss: Loss
) -> None:
    made = await stored(stores.letters, 2)
    job = await stores.letters.create_replay(ids(made), actor="ann")
    for item, resolved in zip(await claim(stores.letters), (True, False), strict=True):
        async with stores.losing(loss, "finish"):
            with pytest.raises(DatabaseUnreachable):
                await stores.letters.finish(item, resolved=resolved, error=None)
        outcome = S.RESOLVED if resolved else S.FAILED
        assert (await stores.letters.get(item.letter.id)).status is (outcome if loss.is_done else S.PROCESSING)
        await stores.letters.finish(item, resolved=resolved, error=None)
        with pytest.raises(MoveRefused):
            await stores.letters.finish(item, resolved=not resolved, error=None)
        view = await stores.letters.get(item.letter.id)
        assert (view.status, view.letter.attempts) == (outcome, 2)
    assert counts(await stores.letters.replay(job.id)) == ("DONE", 2, 2, 1, 1)


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_claim_whose_giving_back_is_lost_was_given_back_or_not(stores: StoreWorld, loss: Loss) -> None:
    made = await stored(stores.letters, 1)
    await stores.letters.create_replay(ids(made), actor="ann")
    (item,) = await claim(stores.letters)
    async with stores.losing(loss, "give_back"):
        with pytest.raises(DatabaseUnreachable):
            await stores.letters.give_back(item)
    assert await statuses(stores, made) == [S.NEW if loss.is_done else S.PROCESSING]
    await stores.letters.give_back(item)
    assert await statuses(stores, made) == [S.NEW]


@conforms
async def test_an_outcome_that_arrives_after_the_claim_was_given_back_decides_nothing(stores: StoreWorld) -> None:
    made = await stored(stores.letters, 1)
    job = await stores.letters.create_replay(ids(made), actor="ann")
    (slow,) = await claim(stores.letters, "slow")
    async with stores.belated("finish"):
        with pytest.raises(DatabaseUnreachable):
            await stores.letters.finish(slow, resolved=False, error="late")
    await stores.later(61)
    (item,) = await claim(stores.other.letters, "b")
    await stores.deliver()
    assert await statuses(stores, made) == [S.PROCESSING]
    await stores.other.letters.finish(item, resolved=True, error=None)
    assert counts(await stores.letters.replay(job.id)) == ("DONE", 1, 1, 1, 0)

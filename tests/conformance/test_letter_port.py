"""The port `LetterStore`: each letter once, the moves of its life, pages over all of them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import uuid4

import pytest

from outboxd.errors import ConfigurationError, DatabaseUnreachable, LetterUnknown, MoveRefused
from outboxd.ports import LetterFilter, LetterStore, LetterView, ReplayItem
from outboxd.records import Headers, Letter, LetterStatus, Refused, Stage, Stored, TopicPartition
from tests.conformance.store_world import Loss, StoreWorld, a_letter
from tests.conformance.telling import conforms

S = LetterStatus
PARTITION = TopicPartition("orders.new", 0)
UNKEEPABLE = 2**40
"""A partition that no column of the home has room for."""

WAYS: dict[LetterStatus, Sequence[LetterStatus]] = {
    S.NEW: (),
    S.PROCESSING: (S.PROCESSING,),
    S.RESOLVED: (S.PROCESSING, S.RESOLVED),
    S.FAILED: (S.PROCESSING, S.FAILED),
    S.DISCARDED: (S.DISCARDED,),
    S.ARCHIVED: (S.ARCHIVED,),
}
BY_HAND: dict[LetterStatus, set[LetterStatus]] = {
    S.NEW: {S.DISCARDED, S.ARCHIVED},
    S.PROCESSING: set(),
    S.RESOLVED: {S.ARCHIVED},
    S.FAILED: {S.DISCARDED, S.ARCHIVED},
    S.DISCARDED: {S.ARCHIVED, S.NEW},
    S.ARCHIVED: {S.NEW},
}


async def at(letters: LetterStore, status: LetterStatus) -> Letter:
    """A new letter that was brought to this status by hand and by replays."""
    made = a_letter()
    await letters.store([made], sink="home")
    claimed: Sequence[ReplayItem] = ()
    for step in WAYS[status]:
        if step in {S.DISCARDED, S.ARCHIVED}:
            await letters.move([made.id], step, actor="ann", reason=None)
        elif step is S.PROCESSING:
            await letters.create_replay([made.id], actor="ann")
            claimed = await letters.claim(
                pipeline="establishment", group="establishment", partitions=[PARTITION], owner="a", limit=1
            )
        else:
            await letters.finish(claimed[0], resolved=step is S.RESOLVED, error=None)
    return made


async def everything(letters: LetterStore, wanted: LetterFilter | None = None, limit: int = 10) -> list[LetterView]:
    views: list[LetterView] = []
    cursor: str | None = None
    while True:
        page = await letters.find(wanted or LetterFilter(), limit=limit, cursor=cursor)
        views += page.items
        cursor = page.next
        if cursor is None:
            return views
        assert len(page.items) == limit


# -- storing


@conforms
async def test_a_letter_comes_back_as_it_was(stores: StoreWorld) -> None:
    odd = a_letter(
        group=None,
        key=None,
        value=b"\x00\xff",
        headers=Headers([("a", b"1"), ("a", None), ("b", b""), ("n\x00l", b"\xff"), ("\udcff", b"")]),
        stage=Stage.PUBLISH,
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        outbox_id="x:1",
        timestamp=-1,
        partition=-1,
        offset=-1,
    )
    plain = a_letter(
        2**62, key=b"", value=None, headers=Headers(), first_failed_at=datetime(2026, 1, 1, 0, 0, 0, 7, UTC)
    )
    answers = await stores.letters.store([odd, plain], sink="home")
    assert all(isinstance(answer, Stored) for answer in answers)
    for letter in (odd, plain):
        view = await stores.other.letters.get(letter.id)
        assert view.letter == letter
        assert (view.status, view.sink, view.replay_count) == (S.NEW, "home", 0)
        assert view.created_at == view.updated_at


@pytest.mark.fixes("B053")
@conforms
async def test_a_repeat_counts_as_stored_and_writes_nothing(stores: StoreWorld) -> None:
    first, second = a_letter(1), a_letter(2)
    await stores.letters.store([first], sink="home")
    again = dataclasses.replace(first, error_message="other")
    twin = dataclasses.replace(second, error_message="twin")
    answers = await stores.letters.store([again, second, twin], sink="drain")
    assert [isinstance(answer, Stored) for answer in answers] == [True] * 3
    assert {view.letter.id for view in await everything(stores.letters)} == {first.id, second.id}
    view = await stores.letters.get(first.id)
    assert (view.letter.error_message, view.sink) == ("no", "home")
    assert len(await stores.history(first.id)) == len(await stores.history(second.id)) == 1
    assert list(await stores.letters.store([], sink="home")) == []


@conforms
async def test_many_that_store_the_same_letters_at_once_store_each_once(stores: StoreWorld) -> None:
    made = [a_letter(number) for number in range(12)]
    both = (stores.letters, stores.other.letters)
    answers = await asyncio.gather(
        *(both[n % 2].store(made if n % 4 < 2 else made[::-1], sink=f"sink-{n}") for n in range(8))
    )
    assert all(isinstance(answer, Stored) for given in answers for answer in given)
    assert sorted(view.letter.id for view in await everything(stores.letters)) == sorted(letter.id for letter in made)
    assert [len(await stores.history(letter.id)) for letter in made] == [1] * 12


@conforms
async def test_one_letter_that_is_refused_does_not_refuse_its_neighbours(stores: StoreWorld) -> None:
    batch = [a_letter(1), a_letter(2, partition=UNKEEPABLE), a_letter(3)]
    answers = await stores.letters.store(batch, sink="home")
    assert [isinstance(answer, Refused) for answer in answers] == [False, True, False]
    assert {view.letter.id for view in await everything(stores.letters)} == {batch[0].id, batch[2].id}
    mended = dataclasses.replace(batch[1], partition=2)
    assert isinstance((await stores.letters.store([mended], sink="home"))[0], Stored)
    assert (await stores.letters.get(mended.id)).letter == mended


@conforms
async def test_text_that_a_database_cannot_keep_is_replaced_and_capped(stores: StoreWorld) -> None:
    bad = a_letter(error_message="a\x00b\ud800c" + "é" * 9000, error_traceback="x" * 40_000, error_class="C" * 5000)
    await stores.letters.store([bad], sink="home")
    kept = (await stores.letters.get(bad.id)).letter
    assert kept.error_message.startswith("a\ufffdb\ufffdcéé")
    assert 8190 <= len(kept.error_message.encode()) <= 8192
    assert (len(kept.error_traceback), len(kept.error_class)) == (32 * 1024, 1024)


@conforms
async def test_what_retention_dropped_does_not_come_back(stores: StoreWorld) -> None:
    gone = a_letter()
    await stores.letters.store([gone], sink="home")
    await stores.drop(gone.id)
    assert isinstance((await stores.letters.store([gone], sink="home"))[0], Stored)
    assert await everything(stores.letters) == []
    with pytest.raises(LetterUnknown):
        await stores.letters.get(gone.id)
    with pytest.raises(LetterUnknown):
        await stores.letters.create_replay([gone.id], actor="ann")
    assert await stores.letters.move([gone.id], S.DISCARDED, actor="ann", reason=None) == 0


# -- moving by hand


@conforms
async def test_by_hand_a_letter_goes_where_its_life_lets_it_and_nowhere_else(stores: StoreWorld) -> None:
    for status, to in product(WAYS, S):
        made = await at(stores.letters, status)
        moving = stores.letters.move([made.id], to, actor="ann", reason="why")
        if to is status:
            assert await moving == 0
        elif to in BY_HAND[status]:
            assert await moving == 1
        else:
            with pytest.raises(MoveRefused, match=str(made.id)):
                await moving
        is_moved = to is status or to in BY_HAND[status]
        assert (await stores.letters.get(made.id)).status is (to if is_moved else status), (status, to)


@conforms
async def test_a_restored_letter_goes_back_to_where_it_was(stores: StoreWorld) -> None:
    made = await at(stores.letters, S.FAILED)

    async def move(to: LetterStatus) -> int:
        return await stores.letters.move([made.id], to, actor="ann", reason=None)

    await move(S.DISCARDED)
    await move(S.ARCHIVED)
    for wrong in (S.NEW, S.FAILED, S.RESOLVED):
        with pytest.raises(MoveRefused):
            await move(wrong)
    assert await move(S.DISCARDED) == 1
    with pytest.raises(MoveRefused):
        await move(S.NEW)
    assert await move(S.FAILED) == 1
    resolved = await at(stores.letters, S.RESOLVED)
    for to in (S.ARCHIVED, S.RESOLVED):
        assert await stores.letters.move([resolved.id], to, actor="ann", reason=None) == 1


@conforms
async def test_moves_are_all_or_none_each_once_and_leave_unknown_letters_out(stores: StoreWorld) -> None:
    free, discarded, claimed = [await at(stores.letters, status) for status in (S.NEW, S.DISCARDED, S.PROCESSING)]
    with pytest.raises(MoveRefused, match=str(claimed.id)):
        await stores.letters.move([free.id, claimed.id], S.DISCARDED, actor="ann", reason=None)
    assert (await stores.letters.get(free.id)).status is S.NEW
    moved = await stores.letters.move(
        [free.id, discarded.id, uuid4(), free.id], S.DISCARDED, actor="ann", reason="test data"
    )
    assert moved == 1
    assert await stores.letters.move([], S.DISCARDED, actor="ann", reason=None) == 0


@conforms
async def test_every_move_is_in_the_history_with_who_and_why(stores: StoreWorld) -> None:
    made = await at(stores.letters, S.NEW)
    await stores.letters.move([made.id], S.DISCARDED, actor="ann\x00", reason="test\ud800 data")
    await stores.letters.move([made.id], S.DISCARDED, actor="bob", reason=None)
    await stores.letters.move([made.id], S.NEW, actor="bob", reason=None)
    written, *moves = await stores.history(made.id)
    assert (written.before, written.after) == (None, S.NEW)
    assert [(move.before, move.after, move.actor, move.reason) for move in moves] == [
        (S.NEW, S.DISCARDED, "ann\ufffd", "test\ufffd data"),
        (S.DISCARDED, S.NEW, "bob", None),
    ]


@conforms
async def test_of_two_moves_at_once_each_meets_what_the_other_left(stores: StoreWorld) -> None:
    for _ in range(5):
        made = await at(stores.letters, S.NEW)
        discarded, archived = await asyncio.gather(
            stores.letters.move([made.id], S.DISCARDED, actor="ann", reason=None),
            stores.other.letters.move([made.id], S.ARCHIVED, actor="bob", reason=None),
            return_exceptions=True,
        )
        assert archived == 1, "from both sides this move is allowed"
        steps = [move.after for move in (await stores.history(made.id))[1:]]
        if steps == [S.ARCHIVED]:
            assert isinstance(discarded, MoveRefused)
        else:
            assert (discarded, steps) == (1, [S.DISCARDED, S.ARCHIVED])


# -- finding


@conforms
async def test_pages_show_every_letter_once_newest_first(stores: StoreWorld) -> None:
    made = [a_letter(number) for number in range(25)]
    await stores.letters.store(made[:20], sink="home")  # one moment for twenty letters
    await stores.letters.store(made[20:], sink="home")
    seen = await everything(stores.letters)
    assert len({view.letter.id for view in seen}) == len(seen) == 25
    assert [view.created_at for view in seen] == sorted((view.created_at for view in seen), reverse=True)
    assert {view.letter.id for view in seen[:5]} == {letter.id for letter in made[20:]}
    assert [view.letter.id for view in await everything(stores.letters, limit=7)] == [view.letter.id for view in seen]
    assert (await stores.letters.find(LetterFilter(), limit=25)).next is None
    assert (await stores.letters.find(LetterFilter(), limit=24)).next is not None


@conforms
async def test_letters_that_come_or_go_between_two_pages_shift_nothing(stores: StoreWorld) -> None:
    made = [a_letter(number) for number in range(6)]
    for letter in made:
        await stores.letters.store([letter], sink="home")
    first = await stores.letters.find(LetterFilter(), limit=2)
    await stores.letters.store([a_letter(6), a_letter(7)], sink="home")
    await stores.drop(made[4].id)  # the last one of the first page
    second = await stores.letters.find(LetterFilter(), limit=3, cursor=first.next)
    assert [view.letter.offset for view in [*first.items, *second.items]] == [5, 4, 3, 2, 1]
    third = await stores.letters.find(LetterFilter(), limit=3, cursor=second.next)
    assert ([view.letter.offset for view in third.items], third.next) == ([0], None)
    for nonsense in ("nonsense", "7", ""):
        with pytest.raises(ConfigurationError):
            await stores.letters.find(LetterFilter(), limit=1, cursor=nonsense)


@conforms
async def test_filters_are_anded(stores: StoreWorld) -> None:
    one = a_letter(pipeline="p", topic="x", error_class="E\x00", error_root_class="R", fingerprint="f", key=b"\x00k")
    await stores.letters.store([one, a_letter()], sink="home")
    await stores.letters.move([one.id], S.DISCARDED, actor="a", reason=None)
    created = (await stores.letters.get(one.id)).created_at
    filters = [
        LetterFilter(pipeline="p"),
        LetterFilter(topic="x"),
        LetterFilter(error_class="E\x00"),
        LetterFilter(error_class="R"),
        LetterFilter(fingerprint="f"),
        LetterFilter(key=b"\x00k"),
        LetterFilter(status=S.DISCARDED),
        LetterFilter(pipeline="p", status=S.DISCARDED, since=created, until=created + timedelta(hours=1)),
    ]
    for wanted in filters:
        assert [view.letter.id for view in await everything(stores.letters, wanted)] == [one.id], wanted
        late = dataclasses.replace(wanted, since=created + timedelta(microseconds=1))
        early = dataclasses.replace(wanted, until=created)
        other = dataclasses.replace(wanted, pipeline="p\x00\ud800")
        for none in (late, early, other):
            assert await everything(stores.letters, none) == []


# -- connections that are lost in the middle


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_letters_whose_connection_is_lost_are_all_stored_or_none(stores: StoreWorld, loss: Loss) -> None:
    made = [a_letter(number) for number in range(3)]
    async with stores.losing(loss, "store"):
        with pytest.raises(DatabaseUnreachable):
            await stores.letters.store(made, sink="home")
    assert len(await everything(stores.letters)) == (3 if loss.is_done else 0)
    assert all(isinstance(answer, Stored) for answer in await stores.letters.store(made, sink="again"))
    views = await everything(stores.letters)
    assert {view.letter.id for view in views} == {letter.id for letter in made}
    assert {view.sink for view in views} == {"home" if loss.is_done else "again"}


@conforms
async def test_a_letter_that_is_stored_late_is_stored_once(stores: StoreWorld) -> None:
    made = a_letter()
    async with stores.belated("store"):
        with pytest.raises(DatabaseUnreachable):
            await stores.letters.store([made], sink="late")
    await stores.other.letters.store([made], sink="other")
    await stores.deliver()
    assert [(view.letter, view.sink) for view in await everything(stores.letters)] == [(made, "other")]
    assert len(await stores.history(made.id)) == 1


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_moves_whose_connection_is_lost_are_all_made_or_none(stores: StoreWorld, loss: Loss) -> None:
    made = [await at(stores.letters, S.NEW) for _ in range(2)]
    both = [letter.id for letter in made]
    async with stores.losing(loss, "move"):
        with pytest.raises(DatabaseUnreachable):
            await stores.letters.move(both, S.DISCARDED, actor="ann", reason=None)
    statuses = {(await stores.letters.get(letter.id)).status for letter in made}
    assert statuses == {S.DISCARDED if loss.is_done else S.NEW}
    assert await stores.letters.move(both, S.DISCARDED, actor="ann", reason=None) == (0 if loss.is_done else 2)
    assert [len(await stores.history(letter.id)) for letter in made] == [2, 2]


@conforms
async def test_while_the_server_is_away_every_call_says_so(stores: StoreWorld) -> None:
    letters, made = stores.letters, await at(stores.letters, S.NEW)
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: letters.store([a_letter(1)], sink="home"),
        lambda: letters.get(made.id),
        lambda: letters.find(LetterFilter(), limit=1),
        lambda: letters.move([made.id], S.DISCARDED, actor="ann", reason=None),
        lambda: letters.create_replay([made.id], actor="ann"),
        lambda: letters.replay(uuid4()),
        lambda: letters.heartbeat("a"),
    ]
    stores.go_down()
    for call in calls:
        with pytest.raises(DatabaseUnreachable):
            await call()
    stores.come_up()
    assert [view.letter for view in await everything(letters)] == [made]

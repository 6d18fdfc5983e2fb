"""The home of letters on a real server: once each, guarded moves, pages, drain."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import UTC, datetime, timedelta
from itertools import product
from uuid import uuid4

import asyncpg
import pytest

from outboxd.errors import ConfigurationError, LeaseLost, LetterUnknown, MoveRefused
from outboxd.ports import LeaseToken, LetterFilter, LetterView
from outboxd.postgres.lease_store import PostgresLeaseStore
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.records import Headers, Letter, LetterStatus, Refused, Stored
from tests.integration.postgres.conftest import Db, letter, take

S = LetterStatus
EDGES: dict[LetterStatus, set[LetterStatus]] = {
    S.NEW: {S.PROCESSING, S.DISCARDED, S.ARCHIVED},
    S.BLOCKED: {S.NEW, S.PROCESSING, S.DISCARDED, S.ARCHIVED},
    S.PROCESSING: {S.REPLAYED, S.RESOLVED, S.FAILED},
    S.REPLAYED: {S.RESOLVED, S.FAILED, S.DISCARDED, S.ARCHIVED},
    S.FAILED: {S.PROCESSING, S.RESOLVED, S.DISCARDED, S.ARCHIVED},
    S.RESOLVED: {S.ARCHIVED},
    S.DISCARDED: {S.ARCHIVED},
    S.ARCHIVED: set(),
}
WAYS: dict[LetterStatus, list[LetterStatus]] = {
    S.NEW: [],
    S.PROCESSING: [S.PROCESSING],
    S.REPLAYED: [S.PROCESSING, S.REPLAYED],
    S.FAILED: [S.PROCESSING, S.FAILED],
    S.RESOLVED: [S.PROCESSING, S.RESOLVED],
    S.DISCARDED: [S.DISCARDED],
    S.ARCHIVED: [S.ARCHIVED],
}


async def count(db: Db, table: str = "letter") -> int:
    return int(await db.fetchval(f"select count(*) from outboxd.{table}"))


async def test_a_letter_comes_back_as_it_was(letters: PostgresLetterStore) -> None:
    odd = letter(
        key=None,
        value=b"\x00\xff",
        headers=Headers([("a", b"1"), ("a", None), ("b", b""), ("n\x00l", b"\xff"), ("\udcff", b"")]),
        traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-01",
        outbox_id="x:1",
        timestamp=-1,
    )
    assert await letters.store([odd], sink="home") == [Stored(detail="postgres `shop`")]
    view = await letters.get(odd.id)
    assert view.letter == odd
    assert (view.status, view.sink, view.replay_count) == (S.NEW, "home", 0)


@pytest.mark.fixes("B053")
async def test_a_repeat_counts_as_stored_and_writes_nothing(letters: PostgresLetterStore, db: Db) -> None:
    first, second = letter(1), letter(2)
    assert all(isinstance(answer, Stored) for answer in await letters.store([first], sink="home"))
    again = dataclasses.replace(first, error_message="other")
    answers = await letters.store([again, second, second], sink="drain")
    assert all(isinstance(answer, Stored) for answer in answers)
    assert len(answers) == 3
    assert await count(db) == 2
    assert (await letters.get(first.id)).letter.error_message == "no"
    await asyncio.gather(*(letters.store([letter(3, id=first.id)], sink="home") for _ in range(8)))
    assert await count(db) == 2
    assert await letters.store([], sink="home") == []


async def test_text_that_postgres_cannot_keep_is_replaced_and_capped(letters: PostgresLetterStore) -> None:
    bad = letter(error_message="a\x00b\ud800c" + "é" * 9000, error_traceback="x" * 40_000, error_class="C" * 5000)
    await letters.store([bad], sink="home")
    kept = (await letters.get(bad.id)).letter
    assert kept.error_message.startswith("a\ufffdb\ufffd")
    assert len(kept.error_message.encode()) <= 8192
    assert len(kept.error_traceback) == 32 * 1024
    assert len(kept.error_class) == 1024


async def test_one_letter_that_is_refused_does_not_refuse_its_neighbours(letters: PostgresLetterStore, db: Db) -> None:
    batch = [letter(1), letter(2, partition=2**40), letter(3)]
    answers = await letters.store(batch, sink="home")
    assert [isinstance(answer, Refused) for answer in answers] == [False, True, False]
    assert await count(db) == 2
    assert await count(db, "letter_key") == 2


async def at(db: Db, letters: PostgresLetterStore, status: LetterStatus) -> Letter:
    made = letter()
    await letters.store([made], sink="home")
    for step in WAYS[status]:
        await db.execute("update outboxd.letter set status = $2 where id = $1", made.id, step.value)
    return made


async def test_the_database_itself_refuses_every_move_that_the_life_cycle_lacks(
    letters: PostgresLetterStore, db: Db
) -> None:
    statement = "update outboxd.letter set status = $2 where id = $1"
    for status, to in product(WAYS, S):
        made = await at(db, letters, status)
        allowed = to is status or to in EDGES[status]
        if status in {S.PROCESSING, S.DISCARDED, S.ARCHIVED}:
            allowed = allowed or to is S.NEW  # where these letters were before
        if allowed:
            await db.execute(statement, made.id, to.value)
        else:
            with pytest.raises(asyncpg.PostgresError, match="cannot go to"):
                await db.execute(statement, made.id, to.value)
        assert (await letters.get(made.id)).status is (to if allowed else status), (status, to)


async def test_every_move_is_in_the_history_with_who_and_why(letters: PostgresLetterStore, db: Db) -> None:
    made = letter()
    await letters.store([made], sink="home")
    assert await letters.move([made.id], S.DISCARDED, actor="ann", reason="test data") == 1
    assert await letters.move([made.id], S.DISCARDED, actor="bob", reason=None) == 0
    assert await letters.move([made.id], S.NEW, actor="bob", reason=None) == 1
    await db.execute("update outboxd.letter set status = 'ARCHIVED'")
    events = await db.fetch("select * from outboxd.letter_event where letter_id = $1 order by event_id", made.id)
    assert [(e["from_status"], e["to_status"], e["actor"], e["reason"]) for e in events] == [
        (None, "NEW", "postgres", None),
        ("NEW", "DISCARDED", "ann", "test data"),
        ("DISCARDED", "NEW", "bob", None),
        ("NEW", "ARCHIVED", "postgres", None),
    ]


async def test_a_restored_letter_goes_back_to_where_it_was(letters: PostgresLetterStore, db: Db) -> None:
    made = await at(db, letters, S.FAILED)
    await letters.move([made.id], S.DISCARDED, actor="ann", reason=None)
    await letters.move([made.id], S.ARCHIVED, actor="ann", reason=None)
    for wrong in (S.NEW, S.FAILED, S.RESOLVED):
        with pytest.raises(MoveRefused):
            await letters.move([made.id], wrong, actor="ann", reason=None)
    await letters.move([made.id], S.DISCARDED, actor="ann", reason=None)
    await letters.move([made.id], S.FAILED, actor="ann", reason=None)
    assert (await letters.get(made.id)).status is S.FAILED


async def test_moves_by_hand_are_all_or_none_and_leave_replays_alone(letters: PostgresLetterStore, db: Db) -> None:
    free, claimed = await at(db, letters, S.NEW), await at(db, letters, S.PROCESSING)
    with pytest.raises(MoveRefused, match=str(claimed.id)):
        await letters.move([free.id, claimed.id], S.DISCARDED, actor="ann", reason=None)
    assert (await letters.get(free.id)).status is S.NEW
    for to in (S.PROCESSING, S.RESOLVED):
        with pytest.raises(MoveRefused):
            await letters.move([free.id], to, actor="ann", reason=None)


async def test_unknown_letters_are_named(letters: PostgresLetterStore) -> None:
    with pytest.raises(LetterUnknown):
        await letters.get(uuid4())
    assert await letters.move([uuid4()], S.DISCARDED, actor="a", reason=None) == 0


async def test_pages_show_every_letter_once_newest_first(letters: PostgresLetterStore) -> None:
    made = [letter(n) for n in range(25)]
    await letters.store(made[:20], sink="home")  # one moment for twenty letters
    await letters.store(made[20:], sink="home")
    seen: list[LetterView] = []
    cursor, pages = None, 0
    while True:
        page = await letters.find(LetterFilter(), limit=10, cursor=cursor)
        seen += page.items
        pages += 1
        cursor = page.next
        if cursor is None:
            break
    assert pages == 3
    assert len({view.letter.id for view in seen}) == 25
    assert [view.created_at for view in seen] == sorted((view.created_at for view in seen), reverse=True)
    assert {view.letter.id for view in seen[:5]} == {item.id for item in made[20:]}
    with pytest.raises(ConfigurationError):
        await letters.find(LetterFilter(), limit=1, cursor="nonsense")


FILTERS = [
    LetterFilter(pipeline="p"),
    LetterFilter(topic="x"),
    LetterFilter(error_class="E"),
    LetterFilter(error_class="R"),
    LetterFilter(fingerprint="f"),
    LetterFilter(key=b"\x00k"),
    LetterFilter(status=S.DISCARDED),
    LetterFilter(pipeline="p", status=S.DISCARDED, since=datetime(2026, 1, 1, tzinfo=UTC)),
]


async def test_filters_are_anded(letters: PostgresLetterStore) -> None:
    one = letter(pipeline="p", topic="x", error_class="E", error_root_class="R", fingerprint="f", key=b"\x00k")
    await letters.store([one, letter()], sink="home")
    await letters.move([one.id], S.DISCARDED, actor="a", reason=None)
    for wanted in FILTERS:
        found = await letters.find(wanted, limit=10)
        assert [view.letter.id for view in found.items] == [one.id], wanted
        late = dataclasses.replace(wanted, since=datetime.now(UTC) + timedelta(hours=1))
        assert (await letters.find(late, limit=10)).items == []
        early = dataclasses.replace(wanted, until=datetime(2026, 1, 1, tzinfo=UTC))
        assert (await letters.find(early, limit=10)).items == []


async def test_the_drain_carries_each_letter_once_with_its_position(
    letters: PostgresLetterStore, leases: PostgresLeaseStore, db: Db
) -> None:
    lease = await take(leases, "drain:p:topic")
    first, second = letter(1), letter(2)
    await letters.store([first], sink="home")
    assert await letters.drain([first, second], sink="topic", lease=lease, position='{"0": 7}') == 1
    assert await letters.drain([first, second], sink="topic", lease=lease, position='{"0": 9}') == 0
    assert await letters.drain([], sink="topic", lease=lease, position='{"0": 10}') == 0
    assert (await letters.get(second.id)).sink == "topic"
    again = await leases.acquire(lease.name, lease.owner, timedelta(seconds=5))
    assert again is not None
    assert again.notes == {"position": '{"0": 10}'}
    for lost in (lease, LeaseToken(name=lease.name, owner="b", epoch=again.token.epoch)):
        with pytest.raises(LeaseLost):
            await letters.drain([letter(3)], sink="topic", lease=lost, position="12")
    assert await count(db) == 2


async def test_what_retention_dropped_does_not_come_back(
    letters: PostgresLetterStore, leases: PostgresLeaseStore, db: Db
) -> None:
    lease = await take(leases, "drain:p:topic")
    gone = letter()
    await letters.store([gone], sink="home")
    await db.execute("delete from outboxd.letter")
    assert await letters.drain([gone], sink="topic", lease=lease, position="1") == 0
    assert await count(db) == 0


async def test_people_read_letters_as_text(letters: PostgresLetterStore, db: Db) -> None:
    plain = letter(headers=Headers([("event", b"created"), ("n", None)]))
    raw = letter(key=b"\xff\x00", timestamp=-1, headers=Headers([("\udcff", b"\xfe")]))
    await letters.store([plain, raw], sink="home")
    row = await db.fetchrow("select * from outboxd.letter_text where id = $1", plain.id)
    assert row is not None
    assert (row["key_text"], row["value_text"], row["headers_text"]) == (
        "order-1",
        '{"total": 10}',
        "event=created, n=NULL",
    )
    assert row["record_time"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
    row = await db.fetchrow("select * from outboxd.letter_text where id = $1", raw.id)
    assert row is not None
    assert row["key_text"] == "\\377\\000"
    assert row["record_time"] is None


async def test_letters_lie_in_their_months_partition(letters: PostgresLetterStore, db: Db) -> None:
    await letters.store([letter()], sink="home")
    assert (
        await db.fetchval("select tableoid::regclass::text from outboxd.letter")
        == f"outboxd.letter_{datetime.now(UTC):%Y_%m}"
    )


async def test_a_parked_letter_may_be_written_and_waits_for_its_turn(letters: PostgresLetterStore, db: Db) -> None:
    for to in S:
        made = letter()
        await letters.store([made], sink="home")
        async with db.transaction():
            copy = "create temp table parked on commit drop as select * from outboxd.letter where id = $1"
            await db.execute(copy.replace("$1", f"'{made.id}'"))
            await db.execute("delete from outboxd.letter where id = $1", made.id)
            await db.execute("update parked set status = 'BLOCKED'")
            await db.execute("insert into outboxd.letter select * from parked")
        moving = db.execute("update outboxd.letter set status = $2 where id = $1", made.id, to.value)
        if to is S.BLOCKED or to in EDGES[S.BLOCKED]:
            await moving
        else:
            with pytest.raises(asyncpg.PostgresError, match="cannot go to"):
                await moving


async def test_a_letter_begins_as_new_or_blocked_only(letters: PostgresLetterStore, db: Db) -> None:
    await letters.store([letter()], sink="home")
    await db.execute("create temp table copied as select * from outboxd.letter; update copied set status = 'RESOLVED'")
    with pytest.raises(asyncpg.PostgresError, match="cannot begin"):
        await db.execute("update copied set id = gen_random_uuid(); insert into outboxd.letter select * from copied")

"""The tables of letters as people and SQL meet them: guarded moves, readable text, partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product

import asyncpg
import pytest

from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.records import Headers, Letter, LetterStatus
from tests.integration.postgres.conftest import Db, letter

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


async def test_a_move_by_sql_is_in_the_history_under_the_name_of_its_session(
    letters: PostgresLetterStore, db: Db
) -> None:
    made = letter()
    await letters.store([made], sink="home")
    await letters.move([made.id], S.DISCARDED, actor="ann", reason="test data")
    await db.execute("update outboxd.letter set status = 'ARCHIVED'")
    events = await db.fetch("select * from outboxd.letter_event where letter_id = $1 order by event_id", made.id)
    assert [(e["from_status"], e["to_status"], e["actor"], e["reason"]) for e in events] == [
        (None, "NEW", "postgres", None),
        ("NEW", "DISCARDED", "ann", "test data"),
        ("DISCARDED", "ARCHIVED", "postgres", None),
    ]


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

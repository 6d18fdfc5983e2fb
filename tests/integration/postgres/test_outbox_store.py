"""The outbox table on a real server: what is fetched, what is marked, and under whose lease."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import pytest

from outboxd.errors import ConfigurationError, LeaseLost, SchemaBehind, StatementFailed
from outboxd.ports import FetchedRows, LeaseToken, Mark, SentRow, Statement
from outboxd.postgres.connector import Connector
from outboxd.postgres.lease_store import PostgresLeaseStore
from outboxd.postgres.migrator import Migrator
from outboxd.postgres.outbox_store import PostgresOutboxStore
from outboxd.postgres.outbox_table import OutboxColumns, OutboxTable
from outboxd.records import OutboxRow, SentPosition
from tests.integration.postgres.conftest import TTL, Db, relay, take

MIB = 1 << 20


async def fetched(
    store: PostgresOutboxStore, *, shards: int = 1, exclude: tuple[int, ...] = (), rows: int = 100, size: int = MIB
) -> FetchedRows:
    return await store.fetch(shards=range(shards), exclude=exclude, max_rows=rows, max_bytes=size)


async def put(db: Db, count: int = 1, *, topic: str = "t", payload: bytes | None = b"v") -> None:
    await db.execute(
        "insert into outboxd.outbox (topic, key, payload) select $1, 'k' || i, $2 from generate_series(1, $3::int) i",
        topic,
        payload,
        count,
    )


def row_ids(found: FetchedRows) -> list[int]:
    return [row.row_id for row in found.rows]


async def test_the_first_start_makes_the_relays_id_and_the_next_ones_find_it(connector: Connector) -> None:
    stores = [PostgresOutboxStore(connector, pipeline="orders", table=OutboxTable()) for _ in range(6)]
    found = await asyncio.gather(
        *(store.register(shards) for store, shards in zip(stores, [8, 8, 4, 2, 1, 8], strict=True))
    )
    assert len({(registration.relay_id, registration.shards) for registration in found}) == 1
    assert isinstance(found[0].relay_id, UUID)


async def test_two_pipelines_on_the_same_rows_are_refused_by_name(connector: Connector, db: Db) -> None:
    await relay(connector)
    with pytest.raises(ConfigurationError, match=r"`other`.*`orders`.*outboxd\.outbox"):
        await PostgresOutboxStore(connector, pipeline="other", table=OutboxTable(where="topic = 'x'")).register(1)
    await db.execute("create table mine (like outboxd.outbox including all)")
    halves = [
        OutboxTable(name=name, where=f"topic {sign} 'x'") for name, sign in (("mine", "="), ("public.mine", "<>"))
    ]
    for pipeline, table in zip(("low", "high"), halves, strict=True):
        await PostgresOutboxStore(connector, pipeline=pipeline, table=table).register(1)


async def test_a_pipeline_that_moves_to_another_table_gets_another_id(connector: Connector, db: Db) -> None:
    await db.execute("create table mine (like outboxd.outbox including all)")
    here = await PostgresOutboxStore(connector, pipeline="orders", table=OutboxTable()).register(8)
    there = await PostgresOutboxStore(connector, pipeline="orders", table=OutboxTable(name="mine")).register(8)
    again = await PostgresOutboxStore(connector, pipeline="orders", table=OutboxTable(name="mine")).register(8)
    assert here.relay_id != there.relay_id == again.relay_id


async def test_what_is_missing_is_said(postgres_dsn: str, connector: Connector, database_factory: object) -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        await PostgresOutboxStore(connector, pipeline="x", table=OutboxTable(name="nowhere")).register(1)
    with pytest.raises(ConfigurationError, match="timestamp"):
        await PostgresOutboxStore(
            connector, pipeline="x", table=OutboxTable(columns=OutboxColumns(timestamp="topic"))
        ).register(1)
    assert callable(database_factory)
    empty = Connector(name="empty", dsn=database_factory())
    await empty.open()
    with pytest.raises(SchemaBehind):
        await PostgresOutboxStore(empty, pipeline="x", table=OutboxTable()).register(1)
    await empty.close()


async def test_a_row_that_commits_late_comes_before_those_that_were_seen(
    connector: Connector, db: Db, postgres_dsn: str
) -> None:
    store = await relay(connector)
    late = await asyncpg.connect(postgres_dsn)
    transaction = late.transaction()
    await transaction.start()
    await put(late)
    await put(db, 3)
    found = await fetched(store)
    assert row_ids(found) == [2, 3, 4]
    assert found.is_complete
    await transaction.commit()
    assert row_ids(await fetched(store, exclude=(2, 3, 4))) == [1]
    await late.close()


async def test_fetching_is_bounded_by_rows_and_by_bytes_and_gives_at_least_one(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    assert (await fetched(store)).is_complete
    await put(db, 20, payload=b"x" * 100_000)
    found = await fetched(store, rows=5)
    assert (row_ids(found), found.is_complete) == ([1, 2, 3, 4, 5], False)
    found = await fetched(store, size=350_000)
    assert (row_ids(found), found.is_complete) == ([1, 2, 3, 4], False)
    found = await fetched(store, size=1)
    assert (row_ids(found), found.is_complete) == ([1], False)
    found = await fetched(store, size=10 * MIB)
    assert (len(found.rows), found.is_complete) == (20, True)


async def test_the_lowest_ids_come_first_wherever_their_rows_lie(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    await put(db, 5)
    await db.execute("update outboxd.outbox set topic = 'u' where id <= 2")  # they lie behind the others now
    found = await fetched(store, rows=2)
    assert row_ids(found) == [1, 2]
    assert [row.topic for row in found.rows] == ["u", "u"]


async def test_every_row_is_in_one_shard_and_a_keys_rows_are_together_in_order(connector: Connector, db: Db) -> None:
    store = PostgresOutboxStore(connector, pipeline="orders", table=OutboxTable())
    await store.register(8)
    await db.execute(
        "insert into outboxd.outbox (topic, key, payload) "
        "select 't', case when i % 5 > 0 then 'k' || i % 20 end, '' from generate_series(1, 400) i"
    )
    whole = (await store.fetch(shards=range(8), exclude=(), max_rows=500, max_bytes=MIB)).rows
    parts = [(await store.fetch(shards=[n], exclude=(), max_rows=500, max_bytes=MIB)).rows for n in range(8)]
    assert sorted(row.row_id for part in parts for row in part) == [row.row_id for row in whole] == list(range(1, 401))
    shards: dict[bytes | None, set[int]] = {}
    for number, part in enumerate(parts):
        assert [row.row_id for row in part] == sorted(row.row_id for row in part)
        assert {row.shard for row in part} <= {number}
        for row in part:
            shards.setdefault(row.key, set()).add(number)
    assert len(shards.pop(None)) > 1
    assert {len(found) for found in shards.values()} == {1}


async def test_paused_topics_and_blocked_keys_stay_where_they_are(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    for topic, key in (("a", "1"), ("a", "2"), ("b", "1"), ("b", None), ("c", "1")):
        await db.execute("insert into outboxd.outbox (topic, key, payload) values ($1, $2, '')", topic, key)
    found = await store.fetch(
        shards=[0], exclude=(), max_rows=9, max_bytes=MIB, skip_topics=["c"], skip_keys=[("a", b"2"), ("b", b"1")]
    )
    assert row_ids(found) == [1, 4]


@pytest.mark.fixes("B028")
async def test_null_json_null_and_empty_are_three_payloads(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    await db.execute(
        "select outboxd.enqueue('t', 'k', null::bytea), outboxd.enqueue('t', 'k', 'null'::jsonb), "
        "outboxd.enqueue('t', 'k', '{}'::jsonb), outboxd.enqueue('t', '', ''::text), "
        "outboxd.enqueue('t', null, ''::bytea), outboxd.enqueue('t', 'k', null)"
    )
    found = await fetched(store)
    assert [(row.key, row.value) for row in found.rows] == [
        (b"k", None),
        (b"k", b"null"),
        (b"k", b"{}"),
        (b"", b""),
        (None, b""),
        (b"k", None),
    ]


ODD = '{"b":1.10,"aa":1,"b":2.50,"a":12345678901234567890123}'


@pytest.mark.fixes("B037")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bytea", ODD.encode()),
        ("text", ODD.encode()),
        ("json", ODD.encode()),
        ("jsonb", b'{"a": 12345678901234567890123, "b": 2.50, "aa": 1}'),
    ],
)
async def test_a_payload_goes_as_the_database_has_it(connector: Connector, db: Db, kind: str, expected: bytes) -> None:
    await db.execute(
        f"create table mine (id bigserial primary key, topic text, key {'bytea' if kind == 'bytea' else 'uuid'}, payload {kind})"
    )
    key = "'\\x00ff'" if kind == "bytea" else "'3c0e4c4a-9d3b-4ad0-8f3e-2d5c3a1f0b11'"
    value = f"convert_to('{ODD}', 'UTF8')" if kind == "bytea" else f"'{ODD}'"
    await db.execute(f"insert into mine (topic, key, payload) values ('t', {key}, {value})")
    table = OutboxTable(name="mine", columns=OutboxColumns(headers=None, timestamp=None))
    store = PostgresOutboxStore(connector, pipeline="p", table=table)
    await store.register(4)
    (row,) = (await store.fetch(shards=range(4), exclude=(), max_rows=9, max_bytes=MIB)).rows
    assert row.value == expected
    assert row.key == (b"\x00\xff" if kind == "bytea" else b"3c0e4c4a-9d3b-4ad0-8f3e-2d5c3a1f0b11")
    assert row.timestamp is None
    assert list(await store.pending([row.row_id])) == [row]


async def test_timestamps_are_milliseconds_and_absurd_ones_spoil_their_own_row_only(
    connector: Connector, db: Db
) -> None:
    await db.execute(
        "create table mine (like outboxd.outbox including all); alter table mine alter created_at drop not null"
    )
    times = ["2026-01-01 00:00:00.001+00", "2026-01-01 00:00:00.0019+00", "infinity", "-infinity", "4000-01-01 BC"]
    for at in [*times, None]:
        await db.execute(
            "insert into mine (topic, key, payload, created_at) values ('t', 'k', '', $1::text::timestamptz)", at
        )
    store = PostgresOutboxStore(connector, pipeline="p", table=OutboxTable(name="mine"))
    await store.register(1)
    found = [row.timestamp for row in (await fetched(store)).rows]
    first = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000) + 1
    assert found[:4] == [first, first, 2**63 - 1, -(2**63)]
    assert found[4] is not None
    assert found[4] < -(10**14)
    assert found[5] is None


async def test_bigint_timestamps_are_taken_as_milliseconds(connector: Connector, db: Db) -> None:
    await db.execute(
        "create table mine (id int primary key, topic text, key text, payload bytea, headers json, ms bigint)"
    )
    await db.execute("insert into mine values (1, 't', 'k', '', '{}', 1700000000123)")
    store = PostgresOutboxStore(
        connector, pipeline="p", table=OutboxTable(name="mine", columns=OutboxColumns(timestamp="ms"))
    )
    await store.register(1)
    assert [row.timestamp for row in (await fetched(store)).rows] == [1700000000123]


async def test_headers_that_cannot_be_read_are_that_rows_defect(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    stored = [
        '{"a": 1}',
        '["a"]',
        '"a"',
        '[["a", "b"], ["a", null], ["c", {"base64": "AP8="}]]',
        '{"a": {"base64": "!"}}',
        "null",
    ]
    for headers in stored:
        await db.execute("insert into outboxd.outbox (topic, key, payload, headers) values ('t', 'k', '', $1)", headers)
    rows = (await fetched(store)).rows
    assert [row.defect is None for row in rows] == [False, False, False, True, False, True]
    assert list(rows[3].headers) == [("a", b"b"), ("a", None), ("c", b"\x00\xff")]
    assert all(row.timestamp is not None and row.timestamp < 0 for row in rows if row.defect)
    assert "'a'" in str(rows[0].defect)


async def mark(
    store: PostgresOutboxStore, lease: LeaseToken, *row_ids: int, statements: tuple[Statement, ...] = ()
) -> frozenset[str]:
    return await store.mark([Mark(lease=lease, row_ids=row_ids, statements=statements)])


async def test_marking_deletes_under_the_lease_and_tells_which_leases_are_lost(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector)
    await put(db, 4)
    ours, lost = await take(leases, "relay:x:0"), await take(leases, "relay:x:1")
    await db.execute("update outboxd.lease set until = now() - interval '1 s'")
    await take(leases, "relay:x:1", owner="b")
    marks = [Mark(lease=ours, row_ids=[1, 3]), Mark(lease=lost, row_ids=[2])]
    assert await store.mark(marks) == {"relay:x:1"}
    assert row_ids(await fetched(store)) == [2, 4]
    assert await store.mark([]) == frozenset()


async def test_an_owner_that_took_its_lease_anew_cannot_mark_under_the_old_epoch(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector, has_actions=True)
    await put(db)
    old = await take(leases)
    new = await take(leases)
    assert (old.owner, old.epoch) == (new.owner, new.epoch - 1)
    assert await mark(store, old, 1) == {old.name}
    with pytest.raises(LeaseLost):
        await store.stage(old, [sent(1)])
    assert await mark(store, new, 1) == frozenset()


async def test_a_mark_waits_for_a_take_over_in_the_same_moment_and_then_sees_it(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector)
    await put(db)
    lease = await take(leases)
    async with db.transaction():
        await db.execute("update outboxd.lease set epoch = epoch + 1, owner = 'b' where name = $1", lease.name)
        marking = asyncio.create_task(mark(store, lease, 1))
        waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and application_name = 'outboxd' and datname = current_database()"
        async with asyncio.timeout(10):
            while not await db.fetchval(waiting):
                await asyncio.sleep(0.01)
    assert await marking == {lease.name}
    assert row_ids(await fetched(store)) == [1]


async def test_done_mark_keeps_rows_and_uses_its_index(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    table = OutboxTable(marks={"published_at": "now()"})
    await Migrator(connector).migrate([table])
    await Migrator(connector).migrate([table])
    store = PostgresOutboxStore(connector, pipeline="orders", table=table)
    await store.register(1)
    await put(db, 3)
    assert await mark(store, await take(leases), 1, 2) == frozenset()
    assert row_ids(await fetched(store)) == [3]
    assert await db.fetchval("select count(*) from outboxd.outbox where published_at is not null") == 2
    assert await db.fetchval("select count(*) from pg_indexes where indexname = 'outbox_pending'") == 1


async def test_statements_commit_with_the_mark_or_not_at_all(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector)
    await db.execute(
        "create table orders (id int primary key, sent int not null default 0); insert into orders values (1), (2)"
    )
    await put(db, 3)
    lease = await take(leases)
    update = Statement(sql="update orders set sent = sent + 1 where id = $1", arguments=[1])
    assert await mark(store, lease, 1, statements=(update,)) == frozenset()
    with pytest.raises(StatementFailed) as failed:
        await mark(store, lease, 2, statements=(update, Statement(sql="select 1 / 0")))
    assert failed.value.sqlstate == "22012"
    with pytest.raises(StatementFailed, match="not pending any more"):
        await mark(store, lease, 1, statements=(update,))
    assert row_ids(await fetched(store)) == [2, 3]
    lost = LeaseToken(name="relay:x:9", owner="a", epoch=1)
    marks = [Mark(lease=lost, row_ids=[3], statements=[update]), Mark(lease=lease, row_ids=[2], statements=[update])]
    assert await store.mark(marks) == {"relay:x:9"}
    assert row_ids(await fetched(store)) == [3]
    assert await db.fetchval("select sent from orders where id = 1") == 2


async def test_what_a_statement_lacks_is_its_rows_failure_and_not_the_connections(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector)
    await put(db, 1)
    lease = await take(leases)
    await db.execute("create role nobody_much")
    try:
        await db.execute("create table secret (id int)")
        privileged = Statement(sql="insert into secret values (1)")
        become = Statement(sql="set local role nobody_much")
        with pytest.raises(StatementFailed) as failed:
            await mark(store, lease, 1, statements=(become, privileged))
        assert failed.value.sqlstate == "42501"
        with pytest.raises(StatementFailed) as failed:
            await mark(store, lease, 1, statements=(Statement(sql="select from outboxd.missing"),))
        assert failed.value.sqlstate == "42P01"
        assert row_ids(await fetched(store)) == [1]
    finally:
        await db.execute("drop role nobody_much")


async def test_a_statement_that_waits_for_the_applications_row_fails_in_time_and_leaves_the_lease_renewable(
    connector: Connector, db: Db, leases: PostgresLeaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outboxd.postgres.outbox_store._ROW_WAIT", "200ms")
    store = await relay(connector)
    await db.execute("create table orders (id int primary key); insert into orders values (1)")
    await put(db)
    lease = await take(leases)
    async with db.transaction():
        await db.execute("select from orders for update")
        marking = asyncio.create_task(mark(store, lease, 1, statements=(Statement(sql="update orders set id = 1"),)))
        async with asyncio.timeout(5):
            await leases.renew(lease, TTL)
        with pytest.raises(StatementFailed) as failed:
            await marking
    assert failed.value.sqlstate == "55P03"


def sent(row: OutboxRow | int, next_action: int = 0) -> SentRow:
    row_id = row if isinstance(row, int) else row.row_id
    return SentRow(row_id=row_id, sent=SentPosition(topic="t", partition=3, offset=42, next_action=next_action))


async def test_a_staged_row_comes_back_as_sent_until_it_is_marked(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector, has_actions=True)
    await put(db, 2)
    lease = await take(leases)
    await store.stage(lease, [sent(1)])
    await store.stage(lease, [sent(1, next_action=1)])
    first, second = (await fetched(store)).rows
    assert first.sent == SentPosition(topic="t", partition=3, offset=42, next_action=1)
    assert second.sent is None
    with pytest.raises(LeaseLost):
        await store.stage(LeaseToken(name=lease.name, owner=lease.owner, epoch=9), [sent(2)])
    # A configuration without actions still knows that it was sent.
    plain = await relay(connector)
    assert [row.sent is not None for row in (await fetched(plain)).rows] == [True, False]
    assert await mark(plain, lease, 1) == frozenset()
    assert await db.fetchval("select count(*) from outboxd.outbox_stage") == 0


async def test_another_row_under_a_staged_id_is_not_taken_for_sent(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector, has_actions=True)
    await put(db, payload=b"old")
    await store.stage(await take(leases), [sent(1)])
    await db.execute("truncate outboxd.outbox restart identity")
    await put(db, payload=b"new")
    assert [(row.value, row.sent) for row in (await fetched(store)).rows] == [(b"new", None)]


async def test_the_oldest_pending_row_has_an_age(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    assert await store.oldest_pending() is None
    await db.execute(
        "insert into outboxd.outbox (topic, payload, created_at) values ('t', '', now() - interval '1 hour')"
    )
    assert 3600 <= (await store.oldest_pending() or 0) < 3700
    await db.execute("update outboxd.outbox set created_at = 'infinity'")
    assert await store.oldest_pending() == 0


@pytest.mark.fixes("B026")
async def test_between_fetch_and_mark_nothing_is_held_so_that_an_idle_transaction_timeout_hits_nobody(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    database = await db.fetchval("select current_database()")
    await db.execute(f"alter database \"{database}\" set idle_in_transaction_session_timeout = '100ms'")
    store = await relay(connector, has_actions=True)
    await put(db, 3)
    lease = await take(leases)
    rows = (await fetched(store)).rows
    await store.stage(lease, [sent(rows[0])])
    busy = "select count(*) from pg_stat_activity where application_name = 'outboxd' and datname = current_database() and state <> 'idle'"
    held = (
        "select count(*) from pg_locks l join pg_stat_activity a using (pid) "
        "where a.application_name = 'outboxd' and a.datname = current_database() and l.locktype <> 'virtualxid'"
    )
    assert await db.fetchval(busy) == 0
    assert await db.fetchval(held) == 0
    # Another one may lock the same rows meanwhile, and what was fetched is marked all the same.
    async with db.transaction():
        assert len(await db.fetch("select id from outboxd.outbox for update nowait")) == 3
    assert await mark(store, lease, *(row.row_id for row in rows)) == frozenset()
    assert await db.fetchval("select count(*) from outboxd.outbox") == 0


async def test_fetching_reads_the_index_in_order_and_no_large_payload_it_does_not_give(
    connector: Connector, db: Db
) -> None:
    store = await relay(connector)
    await db.execute(
        "alter table outboxd.outbox alter payload set storage external; insert into outboxd.outbox (topic, key, payload) "
        "select 't', 'k' || i, convert_to(repeat('x', 50000), 'UTF8') from generate_series(1, 400) i; analyze outboxd.outbox"
    )
    assert store._sql is not None
    arguments = (None, [7, 8, 9], 300, 200_000, ["q"], ["t"], [b"k1"])
    plan = json.loads(await db.fetchval("explain (analyze, buffers, format json) " + store._sql.fetch, *arguments))[0][
        "Plan"
    ]
    text = json.dumps(plan)
    assert '"Index Scan"' in text or '"Seq Scan"' in text
    assert '"Hash Join"' not in text
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 400  # 300 payloads are 2,000 blocks
    found = await store.fetch(shards=[0], exclude=[7, 8, 9], max_rows=300, max_bytes=200_000)
    assert len(found.rows) == 4

"""What only Postgres has of an outbox: tables of all kinds, their types and times, locks, privileges, plans."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

import pytest

from outboxd.errors import ConfigurationError, SchemaBehind, StatementFailed
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


async def test_the_lowest_ids_come_first_wherever_their_rows_lie(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    await put(db, 5)
    await db.execute("update outboxd.outbox set topic = 'u' where id <= 2")  # they lie behind the others now
    found = await fetched(store, rows=2)
    assert row_ids(found) == [1, 2]
    assert [row.topic for row in found.rows] == ["u", "u"]


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


async def test_a_configuration_without_actions_still_knows_what_was_sent(
    connector: Connector, db: Db, leases: PostgresLeaseStore
) -> None:
    store = await relay(connector, has_actions=True)
    await put(db, 2)
    lease = await take(leases)
    await store.stage(lease, [sent(1)])
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


async def test_a_row_without_a_finite_time_has_no_age(connector: Connector, db: Db) -> None:
    store = await relay(connector)
    await put(db)
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

"""The connector against a real server: deadlines, failover, reruns, and no state kept in the session."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import asyncpg
import pytest

from outboxd.errors import DatabaseDenied, DatabaseUnreachable, SchemaBehind, StatementFailed
from outboxd.postgres.connector import Connector, Session
from outboxd.postgres.plugin_connection import PluginConnection
from tests.integration.postgres.conftest import Db, Proxy


def connect(dsn: str, *, statement: float = 5, pool: int = 2) -> Connector:
    return Connector(
        name="shop",
        dsn=dsn,
        pool_max_size=pool,
        statement_timeout=timedelta(seconds=statement),
        connect_timeout=timedelta(seconds=2),
        close_timeout=timedelta(seconds=1),
    )


async def test_opening_does_not_need_the_server() -> None:
    connector = connect("postgresql://u:p@127.0.0.1:1/x")
    await connector.open()
    with pytest.raises(DatabaseUnreachable):
        await connector.fetch("select 1")
    await connector.close()
    with pytest.raises(DatabaseUnreachable, match="closed"):
        await connector.fetch("select 1")


@pytest.mark.fixes("B033")
async def test_a_silent_connection_is_left_at_the_deadline_and_closing_does_not_wait_for_it(postgres_dsn: str) -> None:
    async with Proxy(postgres_dsn) as proxy:
        connector = connect(proxy.dsn, statement=0.5)
        await connector.open()
        assert (await connector.fetch("select 1 as one"))[0]["one"] == 1
        proxy.is_silent = True
        began = time.monotonic()
        with pytest.raises(DatabaseUnreachable, match="no answer"):
            await connector.fetch("select 1")

        async def work(session: Session) -> None:
            await session.fetch("select 1")

        with pytest.raises(DatabaseUnreachable):
            await connector.in_transaction(work)
        await connector.close()
        assert time.monotonic() - began < 15  # not the hours of a half-open connection
    assert [task.get_name() for task in asyncio.all_tasks() if "asyncpg" in repr(task.get_coro())] == []


@pytest.mark.fixes("B033")
async def test_after_the_silence_the_next_call_gets_a_new_connection(postgres_dsn: str) -> None:
    async with Proxy(postgres_dsn) as proxy:
        connector = connect(proxy.dsn, statement=0.5, pool=1)
        await connector.open()
        await connector.fetch("select 1")
        proxy.is_silent = True
        with pytest.raises(DatabaseUnreachable):
            await connector.fetch("select 1")
        proxy.is_silent = False
        assert (await connector.fetch("select 2 as two"))[0]["two"] == 2
        await connector.close()


@pytest.mark.fixes("B032")
async def test_a_pool_survives_callers_that_are_cancelled_at_any_moment(postgres_dsn: str) -> None:
    connector = connect(postgres_dsn)
    await connector.open()
    await connector.fetch("select 1")

    async def impatient(patience: float) -> None:
        async with asyncio.timeout(patience):
            await connector.fetch("select pg_sleep(0.002)")

    outcomes = await asyncio.gather(*(impatient(n % 50 / 1000) for n in range(300)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} <= {type(None), TimeoutError}
    for _ in range(5):  # more than the pool has: none of them stayed away
        assert (await connector.fetch("select 1 as one"))[0]["one"] == 1
    async with asyncio.timeout(5):
        await connector.close()


@pytest.mark.fixes("B035")
async def test_a_server_that_became_read_only_is_an_outage_until_it_takes_writes_again(
    connector: Connector, db: Db
) -> None:
    await connector.fetch("select 1")
    database = await db.fetchval("select current_database()")
    await db.execute(f'alter database "{database}" set default_transaction_read_only = on')
    await connector.execute("select 1")
    await db.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'outboxd'")
    for _ in range(3):
        with pytest.raises(DatabaseUnreachable):
            await connector.execute("create table t ()")
    await db.execute("set default_transaction_read_only = off")
    await db.execute(f'alter database "{database}" reset default_transaction_read_only')
    await connector.execute("create table t ()")


async def test_a_statement_that_meets_25006_is_an_outage(connector: Connector) -> None:
    async def work(session: Session) -> None:
        await session.execute("set transaction read only")
        await session.execute("create table t ()")

    with pytest.raises(DatabaseUnreachable):
        await connector.in_transaction(work)


async def test_terminated_backends_cost_one_call_each_at_most(connector: Connector, db: Db) -> None:
    await asyncio.gather(*(connector.fetch("select pg_sleep(0.05)") for _ in range(4)))
    await db.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'outboxd'")
    failures = 0
    for _ in range(6):
        try:
            await connector.fetch("select 1")
        except DatabaseUnreachable:
            failures += 1
    assert failures <= 1


@pytest.mark.fixes("B031")
async def test_nothing_stays_in_the_session(connector: Connector) -> None:
    async def work(session: Session) -> list[asyncpg.Record]:
        await session.fetch("select $1::text[], $2::jsonb", ["a"], "{}")
        return await session.fetch(
            "select (select count(*) from pg_prepared_statements) as statements, "
            "(select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid()) as locks, "
            "(select count(*) from pg_listening_channels()) as channels"
        )

    await connector.fetch("select $1::bigint[]", [1])
    (row,) = await connector.in_transaction(work)
    assert dict(row) == {"statements": 0, "locks": 0, "channels": 0}


@pytest.mark.fixes("B034")
async def test_a_table_that_changes_under_a_transaction_costs_a_rerun_not_an_error(postgres_dsn: str, db: Db) -> None:
    connector = Connector(name="shop", dsn=postgres_dsn, statement_cache_size=100, pool_max_size=1)
    await connector.open()
    await db.execute("create table t (a int)")
    runs = 0

    async def work(session: Session) -> int:
        nonlocal runs
        runs += 1
        await session.fetch("select * from t")
        return runs

    await connector.in_transaction(work)
    await db.execute("alter table t add column b text")
    assert await connector.in_transaction(work) == 3
    await connector.close()


async def test_a_deadlock_is_run_again(connector: Connector, db: Db) -> None:
    await db.execute("create table t (id int primary key, n int); insert into t values (1, 0), (2, 0)")
    met = asyncio.Barrier(2)
    is_first = {1: True, 2: True}

    async def both(first: int, second: int) -> None:
        async def work(session: Session) -> None:
            await session.execute("update t set n = n + 1 where id = $1", first)
            if is_first[first]:
                is_first[first] = False
                await met.wait()
            await session.execute("update t set n = n + 1 where id = $1", second)

        await connector.in_transaction(work)

    await asyncio.gather(both(1, 2), both(2, 1))
    assert [row["n"] for row in await db.fetch("select n from t order by id")] == [2, 2]


async def test_wrong_credentials_and_unknown_databases_are_denied_without_the_password(postgres_dsn: str) -> None:
    for dsn in (
        postgres_dsn.replace("postgres:", "postgres:secret-wrong-", 1).replace("secret-wrong-//", "//"),
        postgres_dsn.rsplit("/", 1)[0] + "/no_such_database",
        "postgresql://u:secret-wrong-@host:notaport/x",
        "mysql://u:secret-wrong-@host/x",
    ):
        connector = connect(dsn)
        await connector.open()
        with pytest.raises(DatabaseDenied) as caught:
            await connector.fetch("select 1")
        assert "secret-wrong-" not in str(caught.value)
        assert caught.value.__suppress_context__ or "secret-wrong-" not in str(caught.value.__cause__)
        await connector.close()


async def test_a_failed_statement_carries_its_sqlstate_and_a_missing_schema_its_remedy(postgres_dsn: str) -> None:
    connector = connect(postgres_dsn)
    await connector.open()
    with pytest.raises(StatementFailed) as failed:
        await connector.fetch("select 1 / 0")
    assert failed.value.sqlstate == "22012"
    with pytest.raises(StatementFailed):
        await connector.fetch("select * from no_such_table")
    with pytest.raises(StatementFailed):
        await connector.fetch("select $1::int", "not a number")
    with pytest.raises(SchemaBehind) as behind:
        await connector.fetch("select 1 from outboxd.lease")
    assert "outboxd migrate" in str(behind.value.suggestion)
    await connector.close()


async def test_a_failed_transaction_leaves_nothing_and_its_connection_is_used_again(connector: Connector) -> None:
    async def work(session: Session) -> None:
        await session.execute("create table t ()")
        await session.execute("select 1 / 0")

    for _ in range(8):
        with pytest.raises(StatementFailed):
            await connector.in_transaction(work)
    assert (await connector.fetch("select to_regclass('t') as t"))[0]["t"] is None


async def test_a_plugin_gets_mappings_and_command_tags(connector: Connector) -> None:
    plugin = PluginConnection(connector)
    assert await plugin.fetch("select $1::int + 1 as n", 1) == [{"n": 2}]
    await plugin.execute("create table t (n int)")
    assert await plugin.execute("insert into t select generate_series(1, $1)", 3) == "INSERT 0 3"

"""Migrations on a real server: once each, alone, the same as SQL text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import asyncpg
import psycopg
import pytest
import pytest_asyncio

from outboxd.errors import SchemaBehind, StatementFailed
from outboxd.postgres.connector import Connector
from outboxd.postgres.migrator import Migrator, migration_sql, migrations
from outboxd.postgres.outbox_table import OutboxTable

MARKED = OutboxTable(marks={"published_at": "now()"})

CATALOGUE = """
    select 'column', table_name || '.' || column_name, data_type || coalesce(column_default, '') || is_nullable
    from information_schema.columns where table_schema = 'outboxd'
    union all select 'index', indexname, indexdef from pg_indexes where schemaname = 'outboxd'
    union all select 'function', p.oid::regprocedure::text, md5(p.prosrc)
    from pg_proc p where p.pronamespace = 'outboxd'::regnamespace
    union all select 'trigger', tgrelid::regclass || '.' || tgname, tgfoid::regproc::text
    from pg_trigger where not tgisinternal and tgrelid in (select oid from pg_class where relnamespace = 'outboxd'::regnamespace)
    union all select 'migration', number::text, phase || name from outboxd.migration
    order by 1, 2
"""


@pytest_asyncio.fixture
async def connector(postgres_dsn: str) -> AsyncIterator[Connector]:
    connector = Connector(name="shop", dsn=postgres_dsn)
    await connector.open()
    yield connector
    await connector.close()


async def catalogue(connector: Connector) -> list[tuple[str, ...]]:
    return [tuple(row.values()) for row in await connector.fetch(CATALOGUE)]


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


async def test_each_migration_is_applied_once(connector: Connector) -> None:
    migrator = Migrator(connector)
    with pytest.raises(SchemaBehind, match="0001 outbox"):
        await migrator.check()
    assert await migrator.migrate() == migrations()
    before = await catalogue(connector)
    assert await migrator.migrate() == []
    assert await catalogue(connector) == before
    await migrator.check()
    await connector.execute("delete from outboxd.migration where number = 3")
    with pytest.raises(SchemaBehind, match="0003 letter"):
        await migrator.check()
    assert [migration.number for migration in await migrator.migrate()] == [3]
    assert await catalogue(connector) == before


async def test_migrators_that_run_at_once_wait_for_each_other(postgres_dsn: str) -> None:
    connectors = [Connector(name="shop", dsn=postgres_dsn) for _ in range(4)]
    for each in connectors:
        await each.open()
    applied = await asyncio.gather(*(Migrator(each).migrate([MARKED]) for each in connectors))
    assert sorted(len(found) for found in applied) == [0, 0, 0, len(migrations())]
    for each in connectors:
        await each.close()


async def test_a_schema_that_is_held_is_an_error_that_says_so(
    connector: Connector, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Migrator(connector).migrate()
    monkeypatch.setattr("outboxd.postgres.migrator._LOCK_WAIT", "200ms")
    holder = await asyncpg.connect(postgres_dsn)
    async with holder.transaction():
        await holder.execute("select from outboxd.outbox")
        with pytest.raises(StatementFailed, match="another migration or a long transaction") as failed:
            await Migrator(connector).migrate([MARKED])
    assert failed.value.sqlstate == "55P03"
    await holder.close()


@pytest.mark.parametrize("outboxes", [[], [MARKED]], ids=["delete", "mark"])
async def test_the_printed_sql_makes_the_same_schema_and_may_be_run_again(
    connector: Connector, database_factory: Callable[[], str], outboxes: list[OutboxTable]
) -> None:
    await Migrator(connector).migrate(outboxes)
    dsn = database_factory()
    with psycopg.connect(dsn, autocommit=True) as by_hand:
        for _ in range(2):
            by_hand.execute(migration_sql(outboxes))
    other = Connector(name="by hand", dsn=dsn)
    await other.open()
    assert await catalogue(other) == await catalogue(connector)
    await Migrator(other).check()
    assert await Migrator(other).migrate() == []
    await other.close()


async def test_a_failing_migration_leaves_nothing(connector: Connector, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [*migrations()]
    broken = type(steps[0])(number=99, phase="pre", name="broken", sql="create table outboxd.x (); select 1 / 0;")
    monkeypatch.setattr("outboxd.postgres.migrator.migrations", lambda: [*steps, broken])
    with pytest.raises(StatementFailed):
        await Migrator(connector).migrate()
    assert (await connector.fetch("select to_regnamespace('outboxd') as n"))[0]["n"] is None


async def test_the_phases_can_be_run_apart(connector: Connector, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [*migrations()]
    late = type(steps[0])(number=99, phase="post", name="late", sql="create table outboxd.late ();")
    monkeypatch.setattr("outboxd.postgres.migrator.migrations", lambda: [*steps, late])
    migrator = Migrator(connector)
    await migrator.migrate(phases=["pre"])
    await migrator.check()
    assert await migrator.migrate() == [late]


async def test_the_first_partitions_are_there_and_letters_already_in_the_default_one_stop_nothing(
    connector: Connector,
) -> None:
    await Migrator(connector).migrate()
    month = f"letter_{datetime.now(UTC):%Y_%m}"
    names = {
        row["name"]
        for row in await connector.fetch(
            "select inhrelid::regclass::text as name from pg_inherits where inhparent = 'outboxd.letter'::regclass"
        )
    }
    assert {f"outboxd.{month}", "outboxd.letter_default"} < names
    assert len(names) == 5
    await connector.execute(f"drop table outboxd.{month}")
    await connector.execute(
        'insert into outboxd.letter (id, created_at, updated_at, pipeline, handler, topic, partition, "offset", '
        "record_timestamp, timestamp_type, headers, stage, error_class, error_root_class, error_message, "
        "error_traceback, rule, fingerprint, retry_count, first_failed_at, last_failed_at, sink) values "
        "(gen_random_uuid(), now(), now(), '', '', '', 0, 0, 0, '', '[]', '', '', '', '', '', '', '', 0, now(), now(), '')"
    )
    assert await Migrator(connector).migrate() == []

"""Rows put into the outbox by SQL and by Python, with every supported driver, and what the relay makes of them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import asyncpg
import psycopg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from psycopg.rows import dict_row
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outboxd.enqueue import HeadersLike, enqueue
from outboxd.postgres.connector import Connector
from outboxd.postgres.outbox_store import PostgresOutboxStore
from outboxd.records import Headers, OutboxRow
from tests.integration.postgres.conftest import Db, relay

SPAN = SpanContext(trace_id=0xABC, span_id=0xDEF, is_remote=False, trace_flags=TraceFlags(1))
TRACEPARENT = b"00-00000000000000000000000000000abc-0000000000000def-01"


@pytest_asyncio.fixture
async def store(connector: Connector) -> PostgresOutboxStore:
    return await relay(connector)


async def rows(store: PostgresOutboxStore) -> list[OutboxRow]:
    return list((await store.fetch(shards=[0], exclude=(), max_rows=1000, max_bytes=1 << 26)).rows)


def url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql://", f"postgresql+{driver}://")


# -- every driver, in the caller's transaction -----------------------------------------------------------------------


async def test_asyncpg(store: PostgresOutboxStore, db: Db) -> None:
    await db.set_type_codec("jsonb", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")
    transaction = db.transaction()
    await transaction.start()
    assert await enqueue(db, "t", "k", {"gone": True}) == 1
    await transaction.rollback()
    async with db.transaction():
        assert await enqueue(db, "t", "k", {"total": 10}, {"event": "created"}) == 2
    (row,) = await rows(store)
    assert (row.topic, row.key, row.value, list(row.headers)) == ("t", b"k", b'{"total":10}', [("event", b"created")])
    assert row.defect is None


async def test_asyncpg_from_a_pool(store: PostgresOutboxStore, postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=0) as pool:
        async with pool.acquire() as connection:
            assert await enqueue(connection, "t", "k", b"v") == 1
        with pytest.raises(TypeError, match="not a pool"):
            await enqueue(pool, "t", "k", b"v")


async def test_psycopg(store: PostgresOutboxStore, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, row_factory=dict_row) as connection:
        assert enqueue(connection, "t", "k", "é", {"a": b"\xff"}) == 1
        connection.rollback()
        assert enqueue(connection, "t", "k", "é", {"a": b"\xff"}) == 2
    (row,) = await rows(store)
    assert (row.row_id, row.value, list(row.headers)) == (2, "é".encode(), [("a", b"\xff")])


async def test_async_psycopg(store: PostgresOutboxStore, postgres_dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(postgres_dsn) as connection:
        assert await enqueue(connection, "t", "k", None) == 1
    (row,) = await rows(store)
    assert row.value is None


async def test_sqlalchemy(store: PostgresOutboxStore, postgres_dsn: str) -> None:
    engine = create_engine(url(postgres_dsn, "psycopg"))
    with Session(engine) as session:
        session.execute(text("select 1"))
        enqueue(session, "t", "k", "gone")
        session.rollback()
        assert enqueue(session, "t", "k", b"s", [("a", "1"), ("a", None)]) == 2
        session.commit()
    with engine.begin() as connection:
        assert enqueue(connection, "t", None, [1, 2]) == 3
    with pytest.raises(TypeError, match="engine"):
        enqueue(engine, "t", "k", b"v")  # type: ignore[call-overload]  # what a careless caller does
    engine.dispose()
    first, second = await rows(store)
    assert (first.value, list(first.headers)) == (b"s", [("a", b"1"), ("a", None)])
    assert (second.key, second.value) == (None, b"[1,2]")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_async_sqlalchemy(store: PostgresOutboxStore, postgres_dsn: str, driver: str) -> None:
    engine = create_async_engine(url(postgres_dsn, driver))
    async with AsyncSession(engine) as session:
        assert await enqueue(session, "t", "k", {"a": None}, {"h": None}) == 1
        await session.commit()
    async with engine.begin() as connection:
        assert await enqueue(connection, "t", "k", None) == 2
    await engine.dispose()
    first, second = await rows(store)
    assert (first.value, list(first.headers)) == (b'{"a":null}', [("h", None)])
    assert second.value is None


async def test_another_table(store: PostgresOutboxStore, db: Db) -> None:
    await db.execute('create schema "My:Shop%"; create table "My:Shop%"."Out" (like outboxd.outbox including all)')
    assert await enqueue(db, "t", "k", b"v", table='"My:Shop%"."Out"') == 1
    with pytest.raises(ValueError, match="name of a table"):
        await enqueue(db, "t", "k", b"v", table="outbox; drop table x")


# -- what is refused -------------------------------------------------------------------------------------------------


REFUSED: list[tuple[tuple[Any, ...], type[Exception]]] = [
    (("", "k", b""), ValueError),
    (("t", b"k", b""), TypeError),
    (("t", 17, b""), TypeError),
    (("t", None, None), ValueError),
    (("t", "k\x00", b""), ValueError),
    (("t", "k", {"a": float("nan")}), ValueError),
    (("t", "k", object()), TypeError),
    (("t", "k", b"", {"a": 1}), TypeError),
    (("t", "k", b"", {1: "a"}), TypeError),
    (("t", "k", b"", {"\ud800": "a"}), ValueError),
]


async def test_a_row_that_could_not_be_published_is_refused_before_it_is_written(connector: Connector, db: Db) -> None:
    for arguments, error in REFUSED:
        with pytest.raises(error):
            await enqueue(db, *arguments)
    assert await db.fetchval("select count(*) from outboxd.outbox") == 0


# -- traces ----------------------------------------------------------------------------------------------------------


async def test_the_current_span_is_the_rows_traceparent_unless_it_has_one(store: PostgresOutboxStore, db: Db) -> None:
    given_headers: list[HeadersLike | None] = [None, {"a": "1"}, [("a", "1")], {"Traceparent": "mine"}]
    with trace.use_span(NonRecordingSpan(SPAN)):
        for headers in given_headers:
            await enqueue(db, "t", "k", b"", headers)
    found = [dict(row.headers) for row in await rows(store)]
    assert [headers.get("traceparent") for headers in found] == [TRACEPARENT, TRACEPARENT, TRACEPARENT, None]
    assert [headers.get("a") for headers in found] == [None, b"1", b"1", None]
    assert found[3] == {"Traceparent": b"mine"}


def test_importing_enqueue_loads_no_driver_and_no_telemetry() -> None:
    heavy = ["asyncpg", "psycopg", "sqlalchemy", "opentelemetry", "pydantic", "aiokafka"]
    code = f"import sys, outboxd.enqueue; sys.exit(any(name in sys.modules for name in {heavy!r}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- headers and payloads survive (invariant 7) ------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
VALUES = st.none() | st.binary() | st.text(st.characters(exclude_categories=["Cs"]))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pairs=st.lists(st.tuples(NAMES, VALUES), max_size=6), payload=st.binary(max_size=50))
async def test_headers_and_bytes_survive_the_table(
    store: PostgresOutboxStore, db: Db, pairs: list[tuple[str, str | bytes | None]], payload: bytes
) -> None:
    row_id = await enqueue(db, "t", "k", payload, pairs)
    (row,) = await store.pending([row_id])
    expected = Headers((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)
    assert (row.headers, row.value, row.defect) == (expected, payload, None)
    by_name = dict(pairs)
    row_id = await enqueue(db, "t", "k", payload, by_name)
    (row,) = await store.pending([row_id])
    assert dict(row.headers) == {
        name: value.encode() if isinstance(value, str) else value for name, value in by_name.items()
    }
    assert await db.fetchval("select outboxd.headers_fault(headers) from outboxd.outbox where id = $1", row_id) is None


# -- SQL ---------------------------------------------------------------------------------------------------------------


async def test_the_sql_function_takes_what_people_write(store: PostgresOutboxStore, db: Db, postgres_dsn: str) -> None:
    example = (
        """select outboxd.enqueue('orders.new', 'order-17', '{"total": 10}'::jsonb, '{"event": "created"}'::jsonb)"""
    )
    assert await db.fetchval(example) == 1
    await db.fetchval("select outboxd.enqueue('t', 'k', '{\"b\":1,  \"a\":2}')")
    await db.fetchval('select outboxd.enqueue(\'t\', \'k\', \'{"b":1,  "a":2}\'::json, \'[["a", "1"], ["a", null]]\')')
    await db.fetchval("select outboxd.enqueue($1, $2, $3)", "t", "k", "text")
    await db.fetchval("select outboxd.enqueue($1, $2, $3::bytea)", "t", "k", b"\xff")
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute("select outboxd.enqueue(%s, %s, %s, %s)", ("t", "k", b"\xfe", json.dumps({"h": "1"})))
        connection.execute("select outboxd.enqueue(%s, %s, %s)", ("t", "k", "text"))
        connection.execute("select outboxd.enqueue(%s, %s, %s)", ("t", "k", None))
    values = [row.value for row in await rows(store)]
    plain = b'{"b":1,  "a":2}'
    assert values == [b'{"total": 10}', plain, plain, b"text", b"\xff", b"\xfe", b"text", None]


FAULTS = [
    ("outboxd.enqueue('', 'k', ''::text)", "topic"),
    ("outboxd.enqueue('t', null, null)", "tombstone"),
    ("outboxd.enqueue('t', 'k', '', '\"x\"')", "JSON string"),
    ("outboxd.enqueue('t', 'k', '', 'null')", "JSON null"),
    ("outboxd.enqueue('t', 'k', '', '{\"a\": 1}')", 'header "a" is a JSON number'),
    ("outboxd.enqueue('t', 'k', '', '{\"a\": {\"base64\": 1}}')", 'header "a" is a JSON object'),
    ("outboxd.enqueue('t', 'k', '', '[[\"a\"]]')", "not a pair"),
    ("outboxd.enqueue('t', 'k', '', '[1]')", "not a pair"),
    ("outboxd.enqueue('t', 'k', '', '[[1, \"a\"]]')", "not a pair"),
]


async def test_the_sql_function_refuses_with_a_reason(connector: Connector, db: Db) -> None:
    for call, said in FAULTS:
        with pytest.raises(asyncpg.PostgresError, match=said):
            await db.execute(f"select {call}")

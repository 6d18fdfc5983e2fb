"""The world of the real stores: a database on a real server, a wire to it that breaks, and a second replica's pool."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import asyncpg

from outboxd.ports import Notes, Statement
from outboxd.postgres.connector import Connector
from outboxd.postgres.lease_store import PostgresLeaseStore
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.postgres.migrator import Migrator
from outboxd.postgres.outbox_store import PostgresOutboxStore
from outboxd.postgres.outbox_table import OutboxTable
from outboxd.postgres.target_store import PostgresTargetStore
from outboxd.records import NO_HEADERS, Headers, LetterStatus
from tests.conformance.postgres_wire import Break, Wire
from tests.conformance.store_world import SHARDS, Loss, Moved, Stores, StoreWorld, Writing

if TYPE_CHECKING:  # generic in the stubs only
    Db = asyncpg.Connection[asyncpg.Record]
else:
    Db = asyncpg.Connection

__all__ = ["prepare_database", "real_stores"]

_GATE: Final = 4711
_PREPARE: Final = f"""
create table ledger (line int check (line >= 0));
create function wait_at_the_gate() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared({_GATE});
    return null;
end $$;
"""
_CLEAR: Final = """
select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid();
delete from ledger; delete from outboxd.outbox; delete from outboxd.outbox_stage; delete from outboxd.relay;
delete from outboxd.lease; delete from outboxd.member; delete from outboxd.replay_item; delete from outboxd.replay_job;
delete from outboxd.letter_event; delete from outboxd.letter; delete from outboxd.letter_key;
delete from outboxd.pipeline_target;
"""
_AGE: Final = """
update outboxd.lease set until = until - $1::interval;
update outboxd.member set until = until - $1::interval;
update outboxd.outbox set created_at = created_at - $1::interval;
"""


class _Call(NamedTuple):
    """A piece of the statement that a call is known by, and the table that it writes to last."""

    statement: bytes
    table: str


_CALLS: Final[Mapping[str, _Call]] = {
    "join": _Call(b"insert into outboxd.member", "outboxd.member"),
    "leave": _Call(b"-- Takes member $2 out", "outboxd.member"),
    "acquire": _Call(b"insert into outboxd.lease", "outboxd.lease"),
    "renew": _Call(b"set until = clock_timestamp() + make_interval", "outboxd.lease"),
    "release": _Call(b"set owner = null", "outboxd.lease"),
    "mark": _Call(b"as is_held", "outboxd.outbox"),
    "mark_statements": _Call(b"as is_held", "outboxd.outbox"),
    "stage": _Call(b"insert into outboxd.outbox_stage", "outboxd.outbox_stage"),
    "store": _Call(b"insert into outboxd.letter_key", "outboxd.letter"),
    "drain": _Call(b"insert into outboxd.letter_key", "outboxd.letter"),
    "move": _Call(b"outboxd.move_letters", "outboxd.letter"),
    "create_replay": _Call(b"insert into outboxd.replay_item", "outboxd.replay_item"),
    "claim": _Call(b"outboxd.claim_replay_items", "outboxd.replay_item"),
    "finish": _Call(b"outboxd.finish_replay_item", "outboxd.letter"),
    "give_back": _Call(b"outboxd.give_back_replay_item", "outboxd.letter"),
    "save": _Call(b"insert into outboxd.pipeline_target", "outboxd.pipeline_target"),
}


async def prepare_database(dsn: str) -> None:
    """Make outboxd's schema, and what the stories need beside it, in an empty database."""
    connector = Connector(name="conformance", dsn=dsn)
    await connector.open()
    await Migrator(connector).migrate([OutboxTable(), OutboxTable(marks={"published_at": "now()"})])
    await connector.execute(_PREPARE)
    await connector.close()


class _Transaction:
    def __init__(self, connection: Db) -> None:
        self._connection = connection

    async def insert(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS) -> int:
        stored = [
            [name, None if item is None else {"base64": base64.b64encode(item).decode()}] for name, item in headers
        ]
        return int(
            await self._connection.fetchval(
                "insert into outboxd.outbox (topic, key, payload, headers) values ($1, $2, $3, $4) returning id",
                topic,
                None if key is None else key.decode(),
                value,
                json.dumps(stored) if stored else None,
            )
        )

    async def commit(self) -> None:
        await self._connection.execute("commit")

    async def rollback(self) -> None:
        await self._connection.execute("rollback")


class _PostgresStores:
    def __init__(self, dsn: str, wire: Wire, pools: tuple[Connector, Connector], db: Db, table: OutboxTable) -> None:
        self._dsn = dsn
        self._wire = wire
        self._db = db
        stores = [
            Stores(
                leases=PostgresLeaseStore(connector),
                outbox=PostgresOutboxStore(connector, pipeline="orders", table=table, has_actions=True),
                letters=PostgresLetterStore(connector),
                targets=PostgresTargetStore(connector),
            )
            for connector in pools
        ]
        self.leases, self.outbox = stores[0].leases, stores[0].outbox
        self.letters, self.targets = stores[0].letters, stores[0].targets
        self.other = stores[1]

    # -- applications and people

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Writing]:
        connection: Db = await asyncpg.connect(self._dsn)
        await connection.execute("begin")
        yield _Transaction(connection)
        await connection.close()

    async def insert(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS) -> int:
        return await _Transaction(self._db).insert(topic, key, value, headers)

    async def edit(self, row_id: int, value: bytes) -> None:
        await self._db.execute("update outboxd.outbox set payload = $2 where id = $1", row_id, value)

    async def delete(self, row_id: int) -> None:
        await self._db.execute("delete from outboxd.outbox where id = $1", row_id)

    def entry(self, line: int) -> Statement:
        return Statement(sql="insert into ledger values ($1)", arguments=[line])

    def refused(self) -> Statement:
        return Statement(sql="insert into ledger values (-1)")

    async def drop(self, letter_id: UUID) -> None:
        await self._db.execute("delete from outboxd.letter where id = $1", letter_id)

    # -- what is stored

    async def ledger(self) -> Sequence[int]:
        return [row["line"] for row in await self._db.fetch("select line from ledger order by line")]

    async def staged(self) -> Sequence[int]:
        return [
            row["row_id"] for row in await self._db.fetch("select row_id from outboxd.outbox_stage order by row_id")
        ]

    async def notes(self, lease: str) -> Notes:
        found: Notes = json.loads(await self._db.fetchval("select notes from outboxd.lease where name = $1", lease))
        return found

    async def history(self, letter_id: UUID) -> Sequence[Moved]:
        events = await self._db.fetch(
            "select * from outboxd.letter_event where letter_id = $1 order by event_id", letter_id
        )
        return [
            Moved(
                before=None if event["from_status"] is None else LetterStatus(event["from_status"]),
                after=LetterStatus(event["to_status"]),
                actor=event["actor"],
                reason=event["reason"],
            )
            for event in events
        ]

    # -- what befalls

    async def later(self, seconds: float) -> None:
        for statement in _AGE.strip().splitlines():
            await self._db.execute(statement, timedelta(seconds=seconds))

    @asynccontextmanager
    async def losing(self, loss: Loss, call: str) -> AsyncIterator[None]:
        if loss is Loss.STATEMENT:
            async with self._ended_at_the_gate(_CALLS[call].table):
                yield
            return
        self._wire.arm(Break.REQUEST if loss is Loss.REQUEST else Break.ANSWER, _CALLS[call].statement)
        yield
        assert not self._wire.is_armed, f"no {call} to lose"

    @asynccontextmanager
    async def _ended_at_the_gate(self, table: str) -> AsyncIterator[None]:
        """Sessions that have written to the table wait in their transactions, and are ended there."""
        await self._db.execute(f"select pg_advisory_lock({_GATE})")
        await self._db.execute(
            f"create trigger gate after insert or update or delete on {table} for each row execute function wait_at_the_gate()"
        )
        ending = asyncio.create_task(self._end_who_waits(), name="the end of a session")
        try:
            yield
            async with asyncio.timeout(5):
                await ending
        finally:
            ending.cancel()
            await asyncio.wait({ending})
            await self._db.execute(f"select pg_advisory_unlock({_GATE})")
            await self._db.execute(f"drop trigger gate on {table}")

    async def _end_who_waits(self) -> None:
        while not await self._db.fetchval(
            "select count(pg_terminate_backend(pid)) from pg_locks where locktype = 'advisory' and not granted "
            "and database = (select oid from pg_database where datname = current_database())"
        ):
            await asyncio.sleep(0.01)

    @asynccontextmanager
    async def belated(self, call: str) -> AsyncIterator[None]:
        self._wire.arm(Break.LATE, _CALLS[call].statement)
        yield
        assert not self._wire.is_armed, f"no {call} to lose"

    async def deliver(self) -> None:
        await self._wire.deliver()

    def go_down(self) -> None:
        self._wire.go_down()

    def come_up(self) -> None:
        self._wire.come_up()


@asynccontextmanager
async def real_stores(
    dsn: str, table: OutboxTable | None = None, *, is_registered: bool = False
) -> AsyncIterator[StoreWorld]:
    """A world on the prepared database, emptied; both replicas have registered their relay when ``is_registered``."""
    async with AsyncExitStack() as opened:
        wire = await opened.enter_async_context(Wire(dsn))
        mine, others = [
            Connector(name=name, dsn=address, statement_timeout=timedelta(seconds=20))
            for name, address in (("mine", wire.dsn), ("other", dsn))
        ]
        for connector in (mine, others):
            await connector.open()
            opened.push_async_callback(connector.close)
        db: Db = await asyncpg.connect(dsn)
        opened.push_async_callback(db.close)
        await db.execute(_CLEAR)
        world = _PostgresStores(dsn, wire, (mine, others), db, OutboxTable() if table is None else table)
        if is_registered:
            await world.outbox.register(SHARDS)
            await world.other.outbox.register(SHARDS)
        yield world

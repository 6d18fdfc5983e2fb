"""One relay's outbox table in Postgres: the port `OutboxStore`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain, repeat
from uuid import UUID, uuid4

import asyncpg

from outboxd.errors import ConfigurationError, DatabaseDenied, LeaseLost, SchemaBehind, StatementFailed
from outboxd.ports import FetchedRows, LeaseToken, Mark, RelayRegistration, SentRow, Statement
from outboxd.postgres.connector import Connector, Row, Session
from outboxd.postgres.header_json import outbox_headers
from outboxd.postgres.outbox_table import DEFAULT_TABLE, ColumnTypes, OutboxSql, OutboxTable, types_sql
from outboxd.postgres.sql import query
from outboxd.postgres.translation import translate
from outboxd.records import NO_HEADERS, Headers, OutboxRow, SentPosition

__all__ = ["PostgresOutboxStore"]

_IMPOSSIBLE = -(2**63)  # the timestamp of a row with a defect: refused even by who does not look at the defect
_ROW_WAIT = "3s"  # a mark with statements waits no longer for the application's row locks


class PostgresOutboxStore:
    """The rows of one relay pipeline. Each call is one statement; with statements in the marks, one transaction.

    ``has_actions`` when a topic of the relay has actions: only then are rows looked up in `outbox_stage` (also when
    rows of an earlier configuration are still in it).
    """

    def __init__(
        self,
        connector: Connector,
        *,
        pipeline: str,
        table: OutboxTable,
        has_actions: bool = False,
        new_id: Callable[[], UUID] = uuid4,
    ) -> None:
        self._connector = connector
        self._pipeline = pipeline
        self._table = table
        self._has_actions = has_actions
        self._new_id = new_id
        self._registration: RelayRegistration | None = None
        self._sql: OutboxSql | None = None

    # -- identity ----------------------------------------------------------------------------------------------------

    async def register(self, shards: int) -> RelayRegistration:
        """See `OutboxStore.register`.

        Raises ConfigurationError when another pipeline takes rows of the same table, or a column cannot be relayed.
        """
        name = await self._table_name()

        async def work(session: Session) -> Row | None:
            # Two pipelines that start at once must not both find the table free.
            await session.execute("lock table outboxd.relay in share row exclusive mode")
            others = await session.fetch(query("relay_others"), self._pipeline, name, self._table.where)
            if others:
                raise _table_taken(name, self._pipeline, [other["pipeline"] for other in others])
            await session.fetch(
                query("relay_register"), self._pipeline, name, self._table.where, self._new_id(), shards
            )
            return await session.fetchrow(query("relay_registration"), self._pipeline)

        found = await self._connector.in_transaction(work)
        assert found is not None  # inserted in this transaction
        registration = RelayRegistration(relay_id=found["relay_id"], shards=found["shards"])
        types = await self._connector.fetch_row(types_sql(self._table))
        assert types is not None  # one row by construction
        self._sql = OutboxSql(
            self._table,
            ColumnTypes(**dict(types)),
            relay_id=registration.relay_id,
            shards=registration.shards,
            is_staged=self._has_actions or found["is_staged"],
        )
        self._registration = registration
        return registration

    async def _table_name(self) -> str:
        row = await self._connector.fetch_row(query("relay_table"), self._table.name)
        if row is not None:
            return str(row["name"])
        if self._table.name == DEFAULT_TABLE:
            raise SchemaBehind(f"table {DEFAULT_TABLE} is missing", suggestion="Run `outboxd migrate -c PATH`.")
        raise ConfigurationError(
            f"outbox table {self._table.name} does not exist in connection `{self._connector.name}`",
            suggestion='Write schema.table; a name with capitals stands in double quotes: "Outbox".',
        )

    def _known(self) -> tuple[RelayRegistration, OutboxSql]:
        if self._registration is None or self._sql is None:
            raise RuntimeError("register() comes first")
        return self._registration, self._sql

    # -- reading -----------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        *,
        shards: Collection[int],
        exclude: Collection[int],
        max_rows: int,
        max_bytes: int,
        skip_topics: Collection[str] = (),
        skip_keys: Collection[tuple[str, bytes]] = (),
    ) -> FetchedRows:
        """See `OutboxStore.fetch`. Sizes are counted by the database before a payload is read."""
        registration, sql = self._known()
        found = await self._connector.fetch(
            sql.fetch,
            None if len(set(shards)) == registration.shards else list(shards),
            list(exclude),
            max_rows,
            max_bytes,
            list(skip_topics),
            [topic for topic, _ in skip_keys],
            [key for _, key in skip_keys],
        )
        # It ended before both limits, so there was nothing more to give.
        is_complete = len(found) < max_rows and (not found or found[-1]["total"] < max_bytes)
        return FetchedRows(rows=_rows(found), is_complete=is_complete)

    async def pending(self, row_ids: Collection[int]) -> Sequence[OutboxRow]:
        """See `OutboxStore.pending`."""
        _, sql = self._known()
        return _rows(await self._connector.fetch(sql.pending, list(row_ids)))

    async def oldest_pending(self) -> float | None:
        """See `OutboxStore.oldest_pending`: the age of the row with the lowest id, which is the next to go."""
        _, sql = self._known()
        row = await self._connector.fetch_row(sql.oldest)
        return None if row is None else max(0.0, row["age"] or 0.0)

    # -- marking -----------------------------------------------------------------------------------------------------

    async def mark(self, marks: Sequence[Mark]) -> frozenset[str]:
        """See `OutboxStore.mark` (invariant 1)."""
        _, sql = self._known()
        if not marks:
            return frozenset()
        if not any(mark.statements for mark in marks):
            return _lost(await self._connector.fetch(sql.mark, *_mark_arguments(marks)))
        lost: frozenset[str] = frozenset()
        while remaining := [mark for mark in marks if mark.lease.name not in lost]:
            try:
                await self._mark_with_statements(sql, remaining)
            except _LeasesLost as error:  # rolled back: once more without theirs
                lost |= error.names
            else:
                break
        return lost

    async def _mark_with_statements(self, sql: OutboxSql, marks: Sequence[Mark]) -> None:
        async def work(session: Session) -> None:
            await session.execute(f"set local lock_timeout = '{_ROW_WAIT}'")
            for mark in marks:
                for statement in mark.statements:
                    await self._run(session, statement)
            # Last, so that the share lock on the lease keeps nobody from renewing it while a statement waits.
            outcome = await session.fetch(sql.mark, *_mark_arguments(marks))
            names = _lost(outcome)
            if names:
                raise _LeasesLost(names)
            wanted = sum(len(set(mark.row_ids)) for mark in marks)
            if outcome[0]["marked"] != wanted:
                raise StatementFailed(
                    f"{wanted - outcome[0]['marked']} of {wanted} rows are not pending any more: their statements are not run again",
                    sqlstate=None,
                )

        await self._connector.in_transaction(work)

    async def _run(self, session: Session, statement: Statement) -> None:
        """What the user's own statement lacks (a privilege, a table) is its row's failure, not the relay's."""
        try:
            await session.fetch(statement.sql, *statement.arguments)
        except asyncpg.PostgresError as error:
            translated = translate(error, self._connector.name)
            if isinstance(translated, DatabaseDenied | SchemaBehind):
                raise StatementFailed(translated.message, sqlstate=error.sqlstate) from error
            raise

    async def stage(self, lease: LeaseToken, rows: Sequence[SentRow]) -> None:
        """See `OutboxStore.stage`. A row that is gone meanwhile is left out."""
        registration, sql = self._known()
        held = await self._connector.fetch_row(
            sql.stage,
            registration.relay_id,
            lease.name,
            lease.owner,
            lease.epoch,
            [row.row_id for row in rows],
            [row.sent.topic for row in rows],
            [row.sent.partition for row in rows],
            [row.sent.offset for row in rows],
            [row.sent.next_action for row in rows],
        )
        if held is None:
            raise LeaseLost(f"lease {lease.name} is not {lease.owner}'s under epoch {lease.epoch} any more")


class _LeasesLost(LeaseLost):
    """Ends the transaction of a mark."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


def _mark_arguments(marks: Sequence[Mark]) -> tuple[list[str], list[str], list[int], list[int], list[int]]:
    return (
        [mark.lease.name for mark in marks],
        [mark.lease.owner for mark in marks],
        [mark.lease.epoch for mark in marks],
        list(chain.from_iterable(mark.row_ids for mark in marks)),
        list(chain.from_iterable(repeat(number, len(mark.row_ids)) for number, mark in enumerate(marks, start=1))),
    )


def _lost(outcome: Sequence[Row]) -> frozenset[str]:
    return frozenset(row["name"] for row in outcome if not row["is_held"])


def _table_taken(table: str, pipeline: str, others: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        f"pipelines `{pipeline}` and `{'`, `'.join(others)}` relay the same rows of table {table}",
        suggestion=(
            "Give one of them another table, or both a `where` that excludes each other's rows. If the other one was "
            f"renamed or removed, take its row `{others[0]}` out of outboxd.relay."
        ),
    )


def _rows(found: Sequence[Row]) -> list[OutboxRow]:
    if found and "sent_topic" in found[0]:
        return [_staged(row) for row in found]
    return [_row(row) for row in found]


def _row(row: Row, sent: SentPosition | None = None) -> OutboxRow:
    # By position: by name costs a third more, on the one path that each row takes.
    row_id, shard, topic, key, payload, text, timestamp = row[:7]
    headers, defect = NO_HEADERS, None
    if text is not None or topic is None:
        headers, defect = _checked(topic, text)
    return OutboxRow(
        row_id=row_id,
        shard=shard,
        topic=topic or "",
        key=key,
        value=payload,
        headers=headers,
        timestamp=timestamp if defect is None else _IMPOSSIBLE,
        sent=sent,
        defect=defect,
    )


def _checked(topic: str | None, text: str | None) -> tuple[Headers, str | None]:
    """The headers, or why the row cannot be published: one bad row never fails a fetch."""
    if topic is None:
        return NO_HEADERS, "the topic is NULL"
    try:
        return outbox_headers(text), None
    except (ValueError, RecursionError) as error:
        return NO_HEADERS, str(error)


def _staged(row: Row) -> OutboxRow:
    if row["sent_topic"] is None:
        return _row(row)
    sent = SentPosition(
        topic=row["sent_topic"],
        partition=row["sent_partition"],
        offset=row["sent_offset"],
        next_action=row["next_action"],
    )
    return _row(row, sent)

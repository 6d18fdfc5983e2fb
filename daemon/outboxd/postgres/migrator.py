"""Brings outboxd's schema up to date, or prints the SQL for teams that run their own migrations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from outboxd.errors import SchemaBehind, StatementFailed
from outboxd.postgres.connector import Connector, Session
from outboxd.postgres.outbox_table import OutboxTable
from outboxd.postgres.sql import migration_names, migration_text, query

__all__ = ["Migration", "Migrator", "Phase", "migration_sql", "migrations"]

Phase = Literal["pre", "post"]
"""`pre` runs before the new version is rolled out and suits the old one too; `post` when no old replica is left."""

_FILE: Final = re.compile(r"(?P<number>\d{4})_(?P<phase>pre|post)_(?P<name>\w+)")
_LOCK_KEY: Final = 7_016_996_765_293_437_281  # any number that nobody else uses
_LOCK_WAIT: Final = "20s"
_LOCK_TIMEOUT: Final = "55P03"
_MONTHS_AHEAD: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One numbered step of the schema."""

    number: int
    phase: Phase
    name: str
    sql: str


def migrations() -> Sequence[Migration]:
    """Every migration of this version, in order."""
    return [_parsed(name) for name in migration_names()]


def _parsed(file_name: str) -> Migration:
    found = _FILE.fullmatch(file_name)
    if found is None:
        raise ValueError(f"migration {file_name!r} is not named NNNN_pre_name or NNNN_post_name")
    phase: Phase = "pre" if found["phase"] == "pre" else "post"
    return Migration(number=int(found["number"]), phase=phase, name=found["name"], sql=migration_text(file_name))


def migration_sql(outboxes: Sequence[OutboxTable] = (), *, phases: Sequence[Phase] = ("pre", "post")) -> str:
    """All of it as one transaction for `psql`; running it again changes nothing."""
    parts = [
        "begin;",
        f"set local lock_timeout = '{_LOCK_WAIT}';",
        f"select pg_advisory_xact_lock({_LOCK_KEY});",
        query("migration_table"),
    ]
    for migration in migrations():
        if migration.phase in phases:
            parts += [f"-- migration {migration.number}: {migration.name}", migration.sql.strip(), _noted(migration)]
    parts += [*_fitting(outboxes), "commit;"]
    return "\n\n".join(parts) + "\n"


class Migrator:
    """Migrates one connection, and tells whether that is needed."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def migrate(
        self, outboxes: Sequence[OutboxTable] = (), *, phases: Sequence[Phase] = ("pre", "post")
    ) -> Sequence[Migration]:
        """Apply what is missing, in one transaction; give what was applied.

        ``outboxes`` are the tables of the pipelines that use this connection: the default table gets its mark column
        when one of them keeps published rows. Migrators that run at once wait for each other, with a bound. Raises
        DatabaseDenied, DatabaseUnreachable, StatementFailed.
        """

        async def work(session: Session) -> Sequence[Migration]:
            await session.execute(f"set local lock_timeout = '{_LOCK_WAIT}'")
            # Of the transaction, not of the session: it is free again however this ends, also behind a pooler.
            await session.execute(f"select pg_advisory_xact_lock({_LOCK_KEY})")
            await session.execute(query("migration_table"))
            known = {row["number"] for row in await session.fetch(query("migration_applied"))}
            missing = [step for step in migrations() if step.number not in known and step.phase in phases]
            for step in missing:
                await session.execute(step.sql)
                await session.execute(_noted(step))
            for statement in _fitting(outboxes):
                await session.execute(statement)
            return missing

        try:
            return await self._connector.in_transaction(work)
        except StatementFailed as error:
            if error.sqlstate == _LOCK_TIMEOUT:
                raise StatementFailed(
                    f"connection `{self._connector.name}`: another migration or a long transaction holds the schema",
                    sqlstate=error.sqlstate,
                    suggestion="Wait until it has ended (see pg_stat_activity), then run `outboxd migrate` again.",
                ) from error
            raise

    async def applied(self) -> frozenset[int]:
        """The numbers of the migrations that this database has; empty without a schema."""
        try:
            return frozenset(row["number"] for row in await self._connector.fetch(query("migration_applied")))
        except SchemaBehind:
            return frozenset()

    async def check(self) -> None:
        """Raise SchemaBehind unless everything that this version reads or writes is there."""
        known = await self.applied()
        missing = [step for step in migrations() if step.phase == "pre" and step.number not in known]
        if missing:
            raise SchemaBehind(
                f"connection `{self._connector.name}`: schema `outboxd` lacks {len(missing)} migrations, "
                f"the first is {missing[0].number:04} {missing[0].name}",
                suggestion="Run `outboxd migrate -c PATH`.",
            )


def _noted(migration: Migration) -> str:
    return (
        "insert into outboxd.migration (number, phase, name) "  # noqa: S608 -- from our own file names
        f"values ({migration.number}, '{migration.phase}', '{migration.name}') on conflict (number) do nothing;"
    )


def _fitting(outboxes: Sequence[OutboxTable]) -> Sequence[str]:
    """What depends on the pipelines and on the calendar; harmless each time."""
    marked = [query("outbox_mark_column")] if any(table.needs_mark_column for table in outboxes) else []
    return [*marked, f"select outboxd.make_letter_partitions({_MONTHS_AHEAD});"]

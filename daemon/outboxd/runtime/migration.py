"""Brings outboxd's schema up to date in every database that needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outboxd.config import Configuration
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.postgres.migrator import Migrator, migration_sql
from outboxd.postgres.outbox_table import OutboxTable
from outboxd.postgres.settings import PostgresSettings
from outboxd.runtime.connections import connector
from outboxd.runtime.consumers import home_connection
from outboxd.runtime.relays import outbox_table

__all__ = ["Migrated", "migrate", "migrations_sql"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """A connection that is up to date now, and the migrations that were applied for that."""

    connection: str
    applied: Sequence[str]


async def migrate(configuration: Configuration) -> Sequence[Migrated]:
    """Migrate every connection that holds an outbox, letters or the target states. Raises DatabaseError."""
    done = []
    for name, outboxes in _needed(configuration).items():
        found = configuration.connections[name]
        assert isinstance(found, PostgresSettings)  # the configuration was checked
        pool = connector(name, found, pool_size=1)
        await pool.open()
        try:
            applied = await Migrator(pool).migrate(outboxes)
        finally:
            await pool.close()
        done.append(Migrated(connection=name, applied=[f"{each.number:04} {each.name}" for each in applied]))
    return done


def migrations_sql(configuration: Configuration) -> Mapping[str, str]:
    """For each connection the SQL that `migrate` would run on an empty database; harmless when it was run."""
    return {name: migration_sql(outboxes) for name, outboxes in _needed(configuration).items()}


def _needed(configuration: Configuration) -> dict[str, list[OutboxTable]]:
    needed: dict[str, list[OutboxTable]] = {}
    if configuration.daemon.state is not None:
        needed.setdefault(configuration.daemon.state, [])
    for pipeline in configuration.pipelines.values():
        match pipeline:
            case RelaySettings():
                needed.setdefault(pipeline.outbox.connection, []).append(outbox_table(pipeline))
            case ConsumerSettings():
                home = home_connection(pipeline.dead_letters)
                if home is not None:
                    needed.setdefault(home, [])
    return needed

"""The adapters are what the ports ask for; the type checker reads this, the test only runs it."""

from __future__ import annotations

from outboxd.api.connections import LetterHome, PostgresConnection
from outboxd.ports import DrainStore, LeaseStore, LetterStore, OutboxStore, TargetStore
from outboxd.postgres.connector import Connector
from outboxd.postgres.lease_store import PostgresLeaseStore
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.postgres.outbox_store import PostgresOutboxStore
from outboxd.postgres.outbox_table import OutboxTable
from outboxd.postgres.plugin_connection import PluginConnection
from outboxd.postgres.target_store import PostgresTargetStore


def test_each_port_has_its_adapter() -> None:
    connector = Connector(name="shop", dsn="postgresql://user:secret@nowhere/x")
    outbox: OutboxStore = PostgresOutboxStore(connector, pipeline="orders", table=OutboxTable())
    lease: LeaseStore = PostgresLeaseStore(connector)
    home = PostgresLetterStore(connector)
    letters: LetterStore = home
    drain: DrainStore = home
    plugin_home: LetterHome = home
    target: TargetStore = PostgresTargetStore(connector)
    plugin: PostgresConnection = PluginConnection(connector)
    assert all((outbox, lease, letters, drain, plugin_home, target, plugin))
    assert "secret" not in repr(connector)

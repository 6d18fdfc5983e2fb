"""Target states on a real server."""

from __future__ import annotations

from datetime import UTC, datetime

from outboxd.lifecycle import TargetState
from outboxd.ports import Target
from outboxd.postgres.connector import Connector
from outboxd.postgres.target_store import PostgresTargetStore


async def test_the_last_target_of_each_pipeline_is_kept(connector: Connector) -> None:
    store = PostgresTargetStore(connector)
    assert await store.load() == {}
    at = datetime(2026, 1, 1, tzinfo=UTC)
    paused = Target(state=TargetState.PAUSED, actor="ann", at=at, reason="deploy")
    started = Target(state=TargetState.STARTED, actor="bob", at=at)
    await store.save("orders", paused)
    await store.save("establishment", paused)
    await store.save("orders", started)
    assert await PostgresTargetStore(connector).load() == {"orders": started, "establishment": paused}

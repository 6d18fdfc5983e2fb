"""Target states in Postgres, shared by all replicas (`outboxd.pipeline_target`)."""

from __future__ import annotations

from collections.abc import Mapping

from outboxd.lifecycle import TargetState
from outboxd.ports import Target
from outboxd.postgres.connector import Connector
from outboxd.postgres.letter_rows import text_for_postgres
from outboxd.postgres.sql import query

__all__ = ["PostgresTargetStore"]


class PostgresTargetStore:
    """The port `TargetStore` on one connection."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def load(self) -> Mapping[str, Target]:
        """See `TargetStore.load`."""
        rows = await self._connector.fetch(query("target_load"))
        return {
            row["pipeline"]: Target(
                state=TargetState(row["state"]), actor=row["actor"], at=row["at"], reason=row["reason"]
            )
            for row in rows
        }

    async def save(self, pipeline: str, target: Target) -> None:
        """See `TargetStore.save`."""
        await self._connector.fetch(
            query("target_save"),
            pipeline,
            str(target.state),
            text_for_postgres(target.actor),
            target.at,
            None if target.reason is None else text_for_postgres(target.reason),
        )

"""What plugins get of a Postgres connection: two verbs, and no driver (`outboxd.api.PostgresConnection`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outboxd.postgres.connector import Connector

__all__ = ["PluginConnection"]


class PluginConnection:
    """`outboxd.api.PostgresConnection` on a connector's pool.

    A call is a transaction of its own. Session settings (`set` without `local`) are not to be made: the next caller
    would get them, or nobody at all behind a pooler.
    """

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def fetch(self, sql: str, *arguments: object) -> Sequence[Mapping[str, object]]:
        """See `PostgresConnection.fetch`."""
        return [dict(row) for row in await self._connector.fetch(sql, *arguments)]

    async def execute(self, sql: str, *arguments: object) -> str:
        """See `PostgresConnection.execute`."""
        return await self._connector.execute(sql, *arguments)

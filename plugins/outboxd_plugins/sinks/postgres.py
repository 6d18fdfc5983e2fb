"""Sink `postgres`: the home of letters, the only place where they have status, history and replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from outboxd.api import Letter, PluginContext, PluginSettings, PostgresConnectionName, Refused, StatelessPlugin, Stored
from outboxd.errors import DatabaseError, SinkUnavailable

__all__ = ["PostgresSink", "PostgresSinkSettings"]


class PostgresSinkSettings(PluginSettings):
    """Settings of sink `postgres`."""

    connection: PostgresConnectionName
    """The Postgres connection whose schema `outboxd` keeps the letters (`outboxd migrate` makes it)."""


class PostgresSink(StatelessPlugin):
    """Writes letters to the tables of a Postgres connection, each once however often it comes."""

    Settings: ClassVar[type[PluginSettings]] = PostgresSinkSettings
    is_durable: ClassVar[bool] = True

    def __init__(self, settings: PostgresSinkSettings, context: PluginContext) -> None:
        super().__init__(settings, context)
        self._connection = settings.connection

    async def write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        """Store the letters. Raises SinkUnavailable."""
        try:
            return await self._context.connections.home(self._connection).store(letters, sink=self._context.name)
        except DatabaseError as error:
            raise SinkUnavailable(
                f"postgres connection {self._connection}: {error}", suggestion=error.suggestion
            ) from error

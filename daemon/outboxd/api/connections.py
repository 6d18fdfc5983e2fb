"""The connections that plugins get by name: protocols, so that a plugin needs neither asyncpg nor aiokafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from outboxd.records import Headers, Letter, Position, RawRecord, Refused, Stored

__all__ = ["Connections", "KafkaConnection", "LetterHome", "PostgresConnection"]


class PostgresConnection(Protocol):
    """A pool of one Postgres connection of the configuration. Each call has the connection's `statement_timeout`."""

    async def fetch(self, sql: str, *arguments: object) -> Sequence[Mapping[str, object]]:
        """Run a query with `$1`-style parameters; the rows as mappings. Raises DatabaseError."""
        ...

    async def execute(self, sql: str, *arguments: object) -> str:
        """Run a statement in a transaction of its own; Postgres's command tag (`UPDATE 1`). Raises DatabaseError."""
        ...


class KafkaConnection(Protocol):
    """A shared producer of one Kafka connection of the configuration, and bounded reads without a group."""

    async def send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int | None = None
    ) -> Position:
        """Publish one record to its key's partition; returns on the acknowledgement. Raises BrokerError."""
        ...

    async def read(self, topic: str, offsets: Mapping[int, int], limit: int) -> Sequence[RawRecord]:
        """Up to ``limit`` records of the topic, to the end that it has at the time of the call.

        Each partition is read from its offset in ``offsets``, else from the log's start. Raises BrokerError.
        """
        ...

    async def max_message_bytes(self, topic: str) -> int | None:
        """The topic's largest record batch in bytes, None when unknown. Raises BrokerError."""
        ...


class LetterHome(Protocol):
    """The tables where letters have status, history and replay."""

    async def store(self, letters: Sequence[Letter], *, sink: str) -> Sequence[Stored | Refused]:
        """Write the letters, each once however often it comes (invariant 6). Raises DatabaseError."""
        ...


class Connections(Protocol):
    """The connections of the configuration, by their names in the YAML."""

    def __getitem__(self, name: str) -> PostgresConnection | KafkaConnection:
        """Raises ConfigurationError for an unknown name."""
        ...

    def postgres(self, name: str) -> PostgresConnection:
        """Raises ConfigurationError for an unknown name or a Kafka connection."""
        ...

    def kafka(self, name: str) -> KafkaConnection:
        """Raises ConfigurationError for an unknown name or a Postgres connection."""
        ...

    def home(self, name: str) -> LetterHome:
        """The home of letters in this Postgres connection. Raises ConfigurationError."""
        ...

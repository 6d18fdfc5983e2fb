"""The connections of one pipeline's start: opened when first used, closed when the start ends, shared with nobody.

A pool of its own for each start keeps pipelines apart: one that is stuck with all its connections holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from outboxd.api import KafkaConnection, LetterHome, PostgresConnection
from outboxd.errors import ConfigurationError, OutboxdError
from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.settings import KafkaSettings
from outboxd.postgres.connector import Connector
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.postgres.plugin_connection import PluginConnection
from outboxd.postgres.settings import PostgresSettings
from outboxd.runtime.kafka_connection import SharedKafkaConnection

__all__ = ["ConnectionSettings", "ConnectionUse", "OpenConnections", "connector"]

ConnectionSettings = Mapping[str, PostgresSettings | KafkaSettings]

_CLOSE_DEADLINE: Final = 6.0


def connector(name: str, settings: PostgresSettings, *, pool_size: int) -> Connector:
    """A pool for the connection, not open yet; ``pool_size`` counts where the settings name none."""
    return Connector(
        name=name,
        dsn=None if settings.dsn is None else settings.dsn.get_secret_value(),
        host=settings.host,
        port=None if settings.dsn is not None else settings.port,
        database=settings.database,
        user=settings.user,
        password=None if settings.password is None else settings.password.get_secret_value(),
        pool_max_size=settings.pool_max_size or pool_size,
        statement_timeout=settings.statement_timeout,
    )


class OpenConnections:
    """`outboxd.api.Connections` for one start of one pipeline.

    ``pool_size`` is what a Postgres pool may grow to where the configuration says nothing.
    """

    def __init__(self, settings: ConnectionSettings, *, pool_size: int) -> None:
        self._settings = dict(settings)
        self._pool_size = pool_size
        self.used: set[str] = set()
        """The names that somebody has asked for: plugins may ask for any, and keep what they got."""
        self.is_open = False
        self._connectors: dict[str, Connector] = {}
        self._for_plugins: dict[str, Connector] = {}
        """Pools that plugins have to themselves: slow statements of theirs must not keep a lease from its renewal."""
        self._brokers: dict[str, KafkaBroker] = {}
        self._kafka: dict[str, SharedKafkaConnection] = {}
        self._closings: list[Callable[[], Awaitable[None]]] = []

    async def open(self) -> None:
        """Make every pool; talks to no server."""
        for name, settings in self._settings.items():
            await self._open_one(name, settings)
        self.is_open = True

    async def _open_one(self, name: str, settings: PostgresSettings | KafkaSettings) -> None:
        if isinstance(settings, PostgresSettings):
            for pools in (self._connectors, self._for_plugins):
                made = connector(name, settings, pool_size=self._pool_size)
                await made.open()
                self._closings.append(made.close)
                pools[name] = made

    async def adopt(self, settings: ConnectionSettings, changed: AbstractSet[str]) -> bool:
        """Give these settings to whoever asks from now on; ``changed`` are the names that mean something else now.

        False when somebody has one of the old ones, or when this is not open yet: whoever holds it must start anew.
        """
        if not self.is_open or self.used & changed:
            return False
        self._settings = dict(settings)
        for name in sorted(changed):
            for pools in (self._connectors, self._for_plugins):
                pools.pop(name, None)  # unused: it holds no connection, and is closed with the rest
            if name in settings:
                await self._open_one(name, settings[name])
        return self.is_open

    async def close(self) -> None:
        """Close everything, newest first, each within its deadline; never raises."""
        self.is_open = False
        while self._closings:
            close = self._closings.pop()
            try:
                async with asyncio.timeout(_CLOSE_DEADLINE):
                    await close()
            except (OutboxdError, OSError, TimeoutError):
                continue  # the adapter has given the connection up by then; the others are closed all the same
        self._connectors.clear()
        self._for_plugins.clear()
        self._brokers.clear()

    def also_close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Close this too, before everything that was opened earlier."""
        self._closings.append(close)

    # -- for the composition root ------------------------------------------------------------------------------------

    def connector(self, name: str) -> Connector:
        """The pool of a Postgres connection. Raises ConfigurationError."""
        self.used.add(name)
        try:
            return self._connectors[name]
        except KeyError:
            raise self._unknown(name, "postgres") from None

    def broker(self, name: str) -> KafkaBroker:
        """The clients of a Kafka connection. Raises ConfigurationError."""
        self.used.add(name)
        if name not in self._brokers:
            settings = self._settings.get(name)
            if not isinstance(settings, KafkaSettings):
                raise self._unknown(name, "kafka")
            self._brokers[name] = KafkaBroker(settings)
        return self._brokers[name]

    def letters(self, name: str) -> PostgresLetterStore:
        """The home of letters in a Postgres connection. Raises ConfigurationError."""
        return PostgresLetterStore(self.connector(name))

    # -- for plugins -------------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> PostgresConnection | KafkaConnection:
        """Raises ConfigurationError for an unknown name."""
        return self.postgres(name) if name in self._connectors else self.kafka(name)

    def postgres(self, name: str) -> PostgresConnection:
        """Raises ConfigurationError for an unknown name or a Kafka connection."""
        self.connector(name)  # raises for what is no Postgres connection
        return PluginConnection(self._for_plugins[name])

    def kafka(self, name: str) -> KafkaConnection:
        """Raises ConfigurationError for an unknown name or a Postgres connection."""
        if name not in self._kafka:
            self._kafka[name] = made = SharedKafkaConnection(self.broker(name))
            self._closings.append(made.close)
        return self._kafka[name]

    def home(self, name: str) -> LetterHome:
        """The home of letters in this Postgres connection. Raises ConfigurationError."""
        return self.letters(name)

    def _unknown(self, name: str, kind: str) -> ConfigurationError:
        known = ", ".join(sorted(self._settings)) or "none"
        if name in self._settings:
            return ConfigurationError(f"connection {name!r} is not of type {kind}")
        return ConfigurationError(f"there is no connection {name!r}", suggestion=f"the configuration declares: {known}")


class ConnectionUse:
    """The connections that the runs of each pipeline hold at this moment."""

    def __init__(self) -> None:
        self._held: dict[OpenConnections, str] = {}

    def began(self, pipeline: str, connections: OpenConnections) -> None:
        """A start of the pipeline holds these from now on."""
        self._held[connections] = pipeline

    def ended(self, connections: OpenConnections) -> None:
        """They are closed."""
        self._held.pop(connections, None)

    def names(self, pipeline: str) -> AbstractSet[str]:
        """What its runs have asked for so far."""
        return {name for connections in self.of(pipeline) for name in connections.used}

    def of(self, pipeline: str) -> Iterator[OpenConnections]:
        """What its runs hold; several while one that ignored its cancellation is left."""
        yield from [connections for connections, name in self._held.items() if name == pipeline]

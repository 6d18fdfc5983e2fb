"""The homes of letters of all pipelines, with small pools of their own for people's questions."""

from __future__ import annotations

from collections.abc import Mapping

from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.postgres.connector import Connector
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.postgres.settings import PostgresSettings
from outboxd.runtime.connections import ConnectionSettings, connector
from outboxd.runtime.consumers import home_connection
from outboxd.runtime.letter_desk import LetterDesk

__all__ = ["Homes"]

_POOL = 2


class Homes:
    """Opened without talking to any server."""

    def __init__(
        self, connections: ConnectionSettings, pipelines: Mapping[str, RelaySettings | ConsumerSettings]
    ) -> None:
        self._of_pipeline = {name: home_connection(settings.dead_letters) for name, settings in pipelines.items()}
        self._pools: dict[str, Connector] = {}
        for name in dict.fromkeys(each for each in self._of_pipeline.values() if each is not None):
            settings = connections.get(name)
            if isinstance(settings, PostgresSettings):
                self._pools[name] = connector(name, settings, pool_size=_POOL)

    async def open(self) -> None:
        """Make the pools."""
        for pool in self._pools.values():
            await pool.open()

    async def close(self) -> None:
        """Close the pools."""
        for pool in self._pools.values():
            await pool.close()

    def desk(self) -> LetterDesk:
        """Letters of all of them for people."""
        homes = {name: PostgresLetterStore(pool) for name, pool in self._pools.items()}
        return LetterDesk(homes=homes, of_pipeline=self._of_pipeline)

"""The homes of letters of all pipelines, with small pools of their own for people's questions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

from outboxd.errors import OutboxdError
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.ports import LetterStore
from outboxd.postgres.connector import Connector
from outboxd.postgres.letter_store import PostgresLetterStore
from outboxd.postgres.settings import PostgresSettings
from outboxd.runtime.connections import ConnectionSettings, connector
from outboxd.runtime.consumers import home_connection
from outboxd.runtime.letter_desk import LetterDesk

__all__ = ["Homes"]

_POOL: Final = 2
_CLOSE_DEADLINE: Final = 6.0

Pipelines = Mapping[str, RelaySettings | ConsumerSettings]


class Homes:
    """Opened without talking to any server."""

    def __init__(self, connections: ConnectionSettings, pipelines: Pipelines) -> None:
        self._connections = connections
        self._pipelines = pipelines
        self._pools: dict[str, Connector] = {}
        self._of_pipeline: dict[str, str | None] = {}
        self._stores: dict[str, LetterStore] = {}
        self._old: list[Connector] = []

    async def open(self) -> None:
        """Make the pools."""
        await self.change(self._connections, self._pipelines, changed=frozenset())

    async def change(self, connections: ConnectionSettings, pipelines: Pipelines, *, changed: AbstractSet[str]) -> None:
        """Be the homes of these pipelines from now on; ``changed`` are connections that mean something else now.

        Pools that are not needed any more wait for `close_old`: somebody may be using one.
        """
        of_pipeline = {name: home_connection(settings.dead_letters) for name, settings in pipelines.items()}
        kept = {
            name: pool for name, pool in self._pools.items() if name in of_pipeline.values() and name not in changed
        }
        made: dict[str, Connector] = {}
        for name in dict.fromkeys(each for each in of_pipeline.values() if each is not None):
            settings = connections.get(name)
            if name not in kept and isinstance(settings, PostgresSettings):
                made[name] = connector(name, settings, pool_size=_POOL)
                await made[name].open()
        self._old += [pool for name, pool in self._pools.items() if name not in kept]
        self._pools = {**kept, **made}
        # In place: the desk looks at these.
        for present, wanted in ((self._of_pipeline, of_pipeline), (self._stores, self._made_stores())):
            present.clear()
            present.update(wanted)  # type: ignore[arg-type]  # each with its own kind

    async def close_old(self) -> None:
        """Close the pools that changes have left."""
        while self._old:
            await _closed(self._old.pop())

    async def close(self) -> None:
        """Close the pools."""
        await self.close_old()
        for pool in self._pools.values():
            await pool.close()

    def desk(self) -> LetterDesk:
        """Letters of all of them for people."""
        return LetterDesk(homes=self._stores, of_pipeline=self._of_pipeline)

    def _made_stores(self) -> dict[str, LetterStore]:
        return {name: PostgresLetterStore(pool) for name, pool in self._pools.items()}


async def _closed(pool: Connector) -> None:
    with suppress(OutboxdError, OSError, TimeoutError):
        async with asyncio.timeout(_CLOSE_DEADLINE):
            await pool.close()

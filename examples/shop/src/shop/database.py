"""The connections of the two services: one pool per database and event loop, from the environment."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import asyncpg

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

__all__ = ["ESTABLISHMENT", "ORDERS", "Database"]


class Database:
    """One service's database. ``variable`` names the environment variable that holds its DSN."""

    def __init__(self, name: str, variable: str) -> None:
        self._name = name
        self._variable = variable
        self._pools: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncpg.Pool[asyncpg.Record]] = WeakKeyDictionary()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PoolConnectionProxy[asyncpg.Record]]:
        """A connection with an open transaction, committed at the end of the block unless it raises."""
        pool = await self._pool()
        async with pool.acquire(timeout=5) as connection, connection.transaction():
            yield connection

    async def create_tables(self) -> None:
        """Create the service's own tables; no error when they are there."""
        schema = resources.files("shop").joinpath("schema", f"{self._name}.sql").read_text("utf-8")
        async with self.transaction() as connection:
            await connection.execute(schema)

    async def close(self) -> None:
        """Close this event loop's pool."""
        pool = self._pools.pop(asyncio.get_running_loop(), None)
        if pool is not None:
            await asyncio.wait_for(pool.close(), timeout=5)

    async def _pool(self) -> asyncpg.Pool[asyncpg.Record]:
        loop = asyncio.get_running_loop()
        if loop not in self._pools:
            # Not awaited yet, so that two callers at the same moment share one pool.
            self._pools[loop] = asyncpg.create_pool(
                os.environ[self._variable], min_size=0, max_size=8, timeout=5, command_timeout=10
            )
        return await self._pools[loop]


ORDERS = Database("orders", "SHOP_ORDERS_DSN")
ESTABLISHMENT = Database("establishment", "SHOP_ESTABLISHMENT_DSN")

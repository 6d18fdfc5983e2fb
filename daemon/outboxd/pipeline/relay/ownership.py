"""Which shards this replica owns: a fair share among the live members, taken, renewed, drained and released."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from outboxd.errors import DatabaseError
from outboxd.ids import shard_lease
from outboxd.pipeline.relay.dependencies import database_call
from outboxd.pipeline.relay.shard import Shard
from outboxd.telemetry.relay import ShardAcquired, ShardReleased

if TYPE_CHECKING:
    from outboxd.pipeline.relay.context import RelayContext
    from outboxd.pipeline.relay.marking import Marker

__all__ = ["Ownership", "fair_share"]

_LOOK_EVERY: Final = 1.0
_GOODBYE: Final = 1.0


def fair_share(shards: int, members: int) -> int:
    """How many shards one of so many live members may own."""
    return -(-shards // max(1, members))


class Ownership:
    """Takes shards until this replica has its share, and gives up what is more than that."""

    def __init__(self, context: RelayContext, marker: Marker, *, shards: int) -> None:
        self._context = context
        self._marker = marker
        self._count = shards
        self._shards: dict[int, Shard] = {}
        self._stopping = asyncio.Event()
        self._group = f"relay:{context.relay_id}"
        self._every = min(_LOOK_EVERY, context.lease_time.total_seconds() / 3)
        self.has_looked = False
        """Whether the first look at the leases succeeded."""

    @property
    def shards(self) -> Sequence[Shard]:
        """The shards that are owned, those being opened or drained included."""
        return list(self._shards.values())

    def stop(self) -> None:
        """Drain and release everything; `run` returns when that is done."""
        self._stopping.set()
        for shard in self._shards.values():
            shard.drain()

    async def run(self) -> None:
        """Own shards until `stop`, then return when the last one is given back."""
        context = self._context
        try:
            async with asyncio.TaskGroup() as group:
                while not self._stopping.is_set():
                    await context.database.wait()
                    try:
                        await self._look(group)
                    except DatabaseError as error:
                        context.database.failed(error)
                    else:
                        self.has_looked = True
                    try:
                        async with asyncio.timeout(self._every):
                            await self._stopping.wait()
                    except TimeoutError:
                        continue
        finally:
            await self._leave()

    async def _leave(self) -> None:
        try:
            await database_call(self._context.leases.leave(self._group, self._context.owner), _GOODBYE)
        except DatabaseError as error:
            self._context.database.failed(error)  # the membership runs out by itself

    async def _look(self, group: asyncio.TaskGroup) -> None:
        context = self._context
        ttl: timedelta = context.lease_time
        seconds = ttl.total_seconds() / 3
        with context.database.watched():
            members = await database_call(context.leases.join(self._group, context.owner, ttl), seconds)
            held = await database_call(context.leases.owned(f"{self._group}:"), seconds)
        context.database.answered()
        share = fair_share(self._count, members)
        for shard in self.shards[share:]:
            shard.drain()
        free = [
            number
            for number in range(self._count)
            if number not in self._shards and shard_lease(context.relay_id, number) not in held
        ]
        # Replicas that look at the same time start at different shards.
        turn = int(context.random.uniform(0, len(free))) if free else 0
        for number in (free[turn:] + free[:turn])[: max(0, share - len(self._shards))]:
            if self._stopping.is_set():
                return
            await self._acquire(number, group, seconds)

    async def _acquire(self, number: int, group: asyncio.TaskGroup, seconds: float) -> None:
        context = self._context
        # Counted from before the request: the answer may be long under way.
        asked_at = context.clock.monotonic()
        name = shard_lease(context.relay_id, number)
        lease = await database_call(context.leases.acquire(name, context.owner, context.lease_time), seconds)
        if lease is None:
            return
        shard = self._shards[number] = Shard(context, self._marker, number, lease, asked_at)
        context.emit(
            ShardAcquired(pipeline=context.pipeline, shard=number, epoch=lease.token.epoch, is_clean=lease.is_clean)
        )
        if self._stopping.is_set():
            shard.drain()
        group.create_task(self._own(shard), name=f"{context.pipeline}: shard {number}")

    async def _own(self, shard: Shard) -> None:
        context = self._context
        try:
            await shard.run()
        finally:
            del self._shards[shard.number]
        if not shard.is_lost:
            context.emit(ShardReleased(pipeline=context.pipeline, shard=shard.number, is_clean=not shard.is_uncertain))

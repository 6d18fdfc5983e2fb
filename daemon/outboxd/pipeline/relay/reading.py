"""The one reader of a relay: fetches for all owned shards at once, ahead of the sending, within the window."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Final

from outboxd.errors import DatabaseError
from outboxd.pipeline.relay.blocks import key_id
from outboxd.pipeline.relay.dependencies import database_call
from outboxd.pipeline.relay.lane import Lane
from outboxd.ports import FetchedRows

if TYPE_CHECKING:
    from datetime import timedelta

    from outboxd.pipeline.relay.context import RelayContext
    from outboxd.pipeline.relay.shard import Shard

__all__ = ["Reader"]

_DEADLINE: Final = 60.0
_SHORTEST_PAUSE: Final = 0.001


class Reader:
    """Reads pending rows and hands them to their shards. ``shards`` gives those that are owned."""

    def __init__(
        self,
        context: RelayContext,
        shards: Callable[[], Sequence[Shard]],
        *,
        poll_max: timedelta,
        page_rows: int,
        page_bytes: int,
    ) -> None:
        self._context = context
        self._shards = shards
        self._poll_max = poll_max.total_seconds()
        self._page_rows = page_rows
        self._page_bytes = page_bytes
        self._pause = _SHORTEST_PAUSE

    async def run(self) -> None:
        """Read until cancelled."""
        context = self._context
        window = context.window
        while True:
            window.wake.clear()
            shards = [shard for shard in self._shards() if shard.is_reading]
            if window.is_full or not shards:
                await window.wake.wait()
                continue
            await context.database.wait()
            try:
                taken, is_complete = await self._read(shards)
            except DatabaseError as error:
                context.database.failed(error)
                continue
            context.database.answered()
            if taken:
                self._pause = _SHORTEST_PAUSE
            if is_complete or not taken:
                await self._idle()

    async def _idle(self) -> None:
        """Wait a little, longer each time that nothing came, unless there is a reason to look at once."""
        pause, self._pause = self._pause, min(self._poll_max, self._pause * 2)
        try:
            async with asyncio.timeout(pause):
                await self._context.window.wake.wait()
        except TimeoutError:
            return

    async def _read(self, shards: Sequence[Shard]) -> tuple[int, bool]:
        context = self._context
        now = context.clock.monotonic()
        for shard in shards:
            if shard.holding.blocks:
                shard.holding.blocks.wake(now)
        room_rows, room_bytes = context.window.room
        generations = {shard.number: shard.holding.generation for shard in shards}
        skipped, due = frozenset(context.topics.skipped), frozenset(context.topics.due)
        with context.database.watched():
            page = await database_call(
                context.outbox.fetch(
                    shards=[shard.number for shard in shards],
                    exclude=list(
                        chain.from_iterable(
                            (*shard.holding.in_flight, *shard.holding.blocks.skipped_rows()) for shard in shards
                        )
                    ),
                    max_rows=min(room_rows, self._page_rows),
                    max_bytes=min(room_bytes, self._page_bytes),
                    skip_topics=skipped,
                    skip_keys=[
                        key for shard in shards if shard.holding.blocks for key in shard.holding.blocks.skipped_keys()
                    ],
                ),
                _DEADLINE,
            )
        # A shard that dropped rows meanwhile must not use this page: it holds later rows of their keys, and not them.
        usable = {
            shard.number: shard
            for shard in shards
            if shard.holding.generation == generations[shard.number] and shard.is_reading
        }
        taken = self._distribute(page, usable)
        self._forget_vanished(page, usable, skipped)
        is_complete = page.is_complete and len(usable) == len(shards)
        if due and is_complete:
            context.topics.vanished(due.difference(row.topic for row in page.rows))
        return taken, is_complete

    def _distribute(self, page: FetchedRows, shards: dict[int, Shard]) -> int:
        taken = 0
        lanes: dict[Lane, None] = {}  # in a fixed order, so that a simulation can be replayed
        milliseconds = int(self._context.clock.now().timestamp() * 1000)
        for row in page.rows:
            shard = shards.get(row.shard)
            if shard is None:
                continue
            lane = shard.holding.admit(row, milliseconds)
            if lane is False:
                continue
            taken += 1
            if lane is not True:
                lanes[lane] = None
        for lane in lanes:
            lane.start()
        return taken

    @staticmethod
    def _forget_vanished(page: FetchedRows, shards: dict[int, Shard], skipped: frozenset[str]) -> None:
        """A blocked row that was looked for and is not pending any more was settled by hand: its key is free."""
        if not page.is_complete or not any(shard.holding.blocks for shard in shards.values()):
            return
        seen = {key_id(row) for row in page.rows}
        for shard in shards.values():
            shard.holding.blocks.vanished(
                seen | {block.key for block in shard.holding.blocks if block.key[0] in skipped}
            )

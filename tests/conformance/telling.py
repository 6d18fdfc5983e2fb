"""Tells one story to a double and to a real adapter: each in a world, and on an event loop, of its own kind."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import Any

from outboxd.runtime.loop import loop_factory
from outboxd.testing.fakes.clock import VirtualTimeLoop

__all__ = ["Stage", "conforms", "in_real_time", "in_virtual_time"]

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
WorldFactory = Callable[[], AbstractAsyncContextManager[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where a story is told: ``world`` is opened inside the loop that ``loop_factory`` makes."""

    loop_factory: LoopFactory
    world: WorldFactory


def in_virtual_time(world: WorldFactory) -> Stage:
    """For doubles: waiting takes no time."""
    return Stage(loop_factory=VirtualTimeLoop, world=world)


def in_real_time(world: WorldFactory) -> Stage:
    """For real adapters: on the loop that the daemon itself runs on."""
    return Stage(loop_factory=loop_factory() or asyncio.new_event_loop, world=world)


def conforms(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that gets a `Stage` from a fixture and tells ``story`` in the world that it opens."""

    @functools.wraps(story)
    def tell(**arguments: object) -> None:
        stages = {name: value for name, value in arguments.items() if isinstance(value, Stage)}
        assert len({stage.loop_factory for stage in stages.values()}) == 1

        async def whole() -> None:
            async with AsyncExitStack() as worlds:
                opened = {name: await worlds.enter_async_context(stage.world()) for name, stage in stages.items()}
                await story(**(arguments | opened))

        with asyncio.Runner(loop_factory=next(iter(stages.values())).loop_factory) as runner:
            runner.run(whole())

    return tell

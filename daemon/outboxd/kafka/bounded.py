"""Runs library calls with a deadline, in a task of their own, and translates what they raise.

The caller waits with `asyncio.wait`, so neither its deadline nor its own cancellation lands in the middle of a call; a
call that is late is cancelled once and given a moment to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import aiokafka.errors as kafka

from outboxd.errors import BrokerUnreachable
from outboxd.kafka.translation import translate

__all__ = ["call", "end", "retrying"]

_T = TypeVar("_T")
_TO_END: Final = 1.0
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5


async def call(work: Coroutine[Any, Any, _T], *, seconds: float, doing: str, topic: str | None = None) -> _T:
    """The result of ``work``, or BrokerUnreachable after ``seconds``, or its error translated.

    ``doing`` completes the sentence "could not ...".
    """
    task = asyncio.create_task(work, name=f"kafka: {doing}")
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise BrokerUnreachable(f"could not {doing}: no answer within {seconds:g} s")
        if task.cancelled():  # aiokafka lets the cancellation of its inner tasks leak (B005)
            raise BrokerUnreachable(f"could not {doing}: the client ended the call")
        return task.result()
    except (kafka.KafkaError, kafka.IllegalOperation, kafka.ConsumerStoppedError, OSError) as error:
        raise translate(error, doing=doing, topic=topic) from error
    finally:
        await end(task)


async def retrying(attempt: Callable[[], Awaitable[_T]], *, seconds: float, doing: str, topic: str | None = None) -> _T:
    """Call ``attempt`` until it gives a result, while what it raises is retriable in aiokafka's eyes and time is left.

    Raises BrokerUnreachable with the last error's text when ``seconds`` have passed.
    """
    last: kafka.KafkaError | None = None

    async def loop() -> _T:
        nonlocal last
        pause = _FIRST_PAUSE
        while True:
            try:
                return await attempt()
            except kafka.KafkaError as error:
                if not error.retriable:
                    raise
                last = error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    try:
        return await call(loop(), seconds=seconds, doing=doing, topic=topic)
    except BrokerUnreachable as error:
        if last is None:
            raise
        raise BrokerUnreachable(f"{error.message} (last: {last!r})", suggestion=error.suggestion) from last


async def end(task: asyncio.Task[Any], *, seconds: float = _TO_END, wait_first: bool = False) -> None:
    """Cancel a task that is not done and wait for its end; whatever it ends with is taken note of, never raised.

    With ``wait_first`` it first gets ``seconds`` to end by itself.
    """
    if wait_first and not task.done():
        await asyncio.wait({task}, timeout=seconds)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=seconds)
    task.add_done_callback(_retrieve)


def _retrieve(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()

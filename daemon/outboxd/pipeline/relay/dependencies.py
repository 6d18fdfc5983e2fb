"""How the broker and the database are doing: growing waits after failures, and what the status says about them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from outboxd.errors import DatabaseUnreachable, OutboxdError
from outboxd.ports import Clock
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.relay import OutageBegan, OutageEnded

__all__ = ["Dependency", "database_call", "growing_wait", "told"]

_T = TypeVar("_T")

_SILENCE: Final = 5.0
"""Seconds a call may take before the status calls its server silent."""


def growing_wait(attempt: int, *, initial: float, maximum: float) -> float:
    """Seconds to wait after the attempt with this number (from 1): doubled each time, up to ``maximum``."""
    return float(min(maximum, initial * 2 ** min(attempt - 1, 40)))


def told(error: BaseException) -> str:
    """What happened and what to do about it, for people."""
    return error.told if isinstance(error, OutboxdError) else str(error) or repr(error)


async def database_call(call: Coroutine[Any, Any, _T], seconds: float) -> _T:
    """Await a call to the database for so long. Raises DatabaseUnreachable when it takes longer: outcome unknown."""
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError as error:
        raise DatabaseUnreachable(f"the database did not answer within {seconds:g} s") from error


class Dependency:
    """One server that the relay needs. After a failure everybody who asks waits, longer each time (invariant 5)."""

    def __init__(
        self,
        *,
        pipeline: str,
        reason: str,
        clock: Clock,
        telemetry: Telemetry,
        initial: float = 0.1,
        maximum: float = 5.0,
    ) -> None:
        self.reason = reason
        self._pipeline = pipeline
        self._clock = clock
        self._telemetry = telemetry
        self._initial = initial
        self._maximum = maximum
        self._attempts = 0
        self._until = 0.0
        self._error: OutboxdError | None = None
        self._calls: dict[object, float] = {}

    def failed(self, error: OutboxdError) -> None:
        """Note a failure. Failures during one wait count once."""
        if self._error is None:
            self._telemetry.emit(OutageBegan(pipeline=self._pipeline, reason=self.reason, error=str(error)))
        self._error = error
        now = self._clock.monotonic()
        if now >= self._until:
            self._attempts += 1
            self._until = now + growing_wait(self._attempts, initial=self._initial, maximum=self._maximum)

    def answered(self) -> None:
        """Note a success."""
        if self._error is not None:
            self._attempts, self._until, self._error = 0, 0.0, None
            self._telemetry.emit(OutageEnded(pipeline=self._pipeline, reason=self.reason))

    async def wait(self) -> None:
        """Wait until it may be asked again."""
        while (remaining := self._until - self._clock.monotonic()) > 0:
            await self._clock.sleep(remaining)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Measure a call: a server that does not answer shows in `trouble` long before the call's deadline."""
        call = object()
        self._calls[call] = self._clock.monotonic()
        try:
            yield
        finally:
            del self._calls[call]

    def trouble(self) -> str | None:
        """What is wrong with it, for people; None while it is well."""
        if self._error is not None:
            return told(self._error)
        if self._calls:
            silence = self._clock.monotonic() - min(self._calls.values())
            if silence > _SILENCE:
                return f"no answer for {silence:.0f} s"
        return None

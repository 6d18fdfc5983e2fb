"""Opens in order, closes in reverse, each stage within a deadline of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outboxd.telemetry.daemon import StageNotClosed
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Stages"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    name: str
    close: Callable[[], Awaitable[object]]
    seconds: float


class Stages:
    """The open stages of the daemon."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._open: list[_Stage] = []

    def opened(self, name: str, close: Callable[[], Awaitable[object]], *, seconds: float) -> None:
        """Note that a stage is open; ``close`` gives False for an unclean end."""
        self._open.append(_Stage(name=name, close=close, seconds=seconds))

    async def close(self) -> list[str]:
        """Close everything, newest first; gives the names of the stages whose end was unclean. Never raises."""
        unclean = []
        while self._open:
            stage = self._open.pop()
            try:
                async with asyncio.timeout(stage.seconds):
                    is_clean = await stage.close() is not False
            except TimeoutError:
                is_clean = False
                self._not_closed(stage, f"not closed within {stage.seconds:.0f} s")
            except Exception as error:  # noqa: BLE001  # the stages below are closed all the same
                is_clean = False
                self._not_closed(stage, f"{type(error).__name__}: {error}")
            if not is_clean:
                unclean.append(stage.name)
        return unclean

    def _not_closed(self, stage: _Stage, reason: str) -> None:
        self._telemetry.emit(StageNotClosed(stage=stage.name, reason=reason))

"""Handler `python`: calls a function of the user's own code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from outboxd.api import HandlerContext, PluginContext, PluginSettings, Record, TargetName, Verdict, load_target

__all__ = ["PythonHandler", "PythonHandlerSettings"]


class PythonHandlerSettings(PluginSettings):
    """Settings of handler `python`."""

    target: TargetName
    """`module:function`: a coroutine function, or a plain one, which then runs in a thread. It takes the record, or
    the record and the context."""


class PythonHandler:
    """Calls the target for each record.

    ``handle`` *is* the target from `open` on, so that a coroutine function costs no frame in between and a plain one
    is seen to be plain.
    """

    Settings: ClassVar[type[PluginSettings]] = PythonHandlerSettings

    handle: Callable[[Record, HandlerContext], Awaitable[Verdict | None] | Verdict | None]

    def __init__(self, settings: PythonHandlerSettings, context: PluginContext) -> None:
        self._settings = settings
        self._context = context
        self.handle = self._not_open

    async def open(self) -> None:
        """Import the target. Raises PluginBroken."""
        self.handle = load_target(self._settings.target)

    async def close(self) -> None:
        """Let the target go."""
        self.handle = self._not_open

    async def _not_open(self, record: Record, context: HandlerContext) -> Verdict | None:
        raise RuntimeError(f"the handler of pipeline {context.pipeline!r} is not open (record {record.offset})")

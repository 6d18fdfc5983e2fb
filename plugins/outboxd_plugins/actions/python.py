"""Action `python`: calls a function of the user's own code after a row was published."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar

from outboxd.api import ActionContext, PluginContext, PluginSettings, Published, TargetName, load_target

__all__ = ["PythonAction", "PythonActionSettings"]


class PythonActionSettings(PluginSettings):
    """Settings of action `python`."""

    target: TargetName
    """`module:function`: a coroutine function, or a plain one, which then runs in a thread. It takes the published
    row, or the published row and the context."""


class PythonAction:
    """Calls the target for each published row, at least once; `published.idempotency_id` tells a repeat."""

    Settings: ClassVar[type[PluginSettings]] = PythonActionSettings

    act: Callable[[Published, ActionContext], Awaitable[None] | None]

    def __init__(self, settings: PythonActionSettings, context: PluginContext) -> None:
        self._settings = settings
        self._context = context
        self.act = self._not_open

    async def open(self) -> None:
        """Import the target. Raises PluginBroken."""
        self.act = load_target(self._settings.target)

    async def close(self) -> None:
        """Let the target go."""
        self.act = self._not_open

    async def _not_open(self, published: Published, context: ActionContext) -> None:
        raise RuntimeError(f"the action of pipeline {context.pipeline!r} is not open (row {published.row_id})")

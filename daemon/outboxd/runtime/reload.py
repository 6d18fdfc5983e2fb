"""Reads the configuration again when its files have changed, or when somebody asks; what is wrong changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, TypeVar

from outboxd.config import Configuration, ConfigurationOrigin, Place, Problem
from outboxd.config.footprint import Seen, look
from outboxd.errors import StateConflict
from outboxd.ports import Clock
from outboxd.runtime.changes import Changes
from outboxd.telemetry.audit import ReloadRequested
from outboxd.telemetry.configuration import (
    ConfigurationApplied,
    ConfigurationRefused,
    ConfigurationUnsettled,
    ReloadIsOff,
    RestartNeeded,
)
from outboxd.telemetry.emitter import Telemetry

__all__ = ["ReloadState", "Reloader"]

_POLL: Final = 2.0
_QUIET: Final = 1.0
_UNSETTLED_AFTER: Final = 30.0
_READ_DEADLINE: Final = 30.0
_PLACE: Final = Place(file="configuration")
_UNREADABLE: Final = Problem(
    place=_PLACE,
    code="read_timed_out",
    message=f"the files could not be read within {_READ_DEADLINE:.0f} s",
    suggestion="see whether the volume that they lie on answers",
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadState:
    """What came of the last reading of the configuration; the start counts as one."""

    mode: Literal["watch", "off"]
    is_successful: bool
    """False: the files are wrong, and the configuration before them is in force."""
    read_at: datetime
    succeeded_at: datetime
    problems: Sequence[Problem] = ()
    added: Sequence[str] = ()
    """Pipelines that the last successful reading began, restarted and ended."""
    changed: Sequence[str] = ()
    removed: Sequence[str] = ()
    needs_restart: Sequence[str] = ()
    """Settings of the process that differ from those it was started with, by dotted key."""


class Reloader:
    """One task that looks at the files every two seconds and waits for a second of quiet before it reads them.

    ``apply`` puts a valid configuration in force and says what that changed. Without ``origin`` there is nothing to
    read again; with ``daemon.reload: off`` nobody may ask for it either.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        origin: ConfigurationOrigin | None,
        apply: Callable[[Configuration], Awaitable[Changes]],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._origin = origin if configuration.daemon.reload == "watch" else None
        self._apply = apply
        self._clock = clock
        self._telemetry = telemetry
        self._seen = configuration.seen
        self._is_unread = False
        """The disk took too long: read again, whatever a look at it says."""
        self._loading = asyncio.Lock()
        self._asked = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._applying: asyncio.Task[None] | None = None
        self._is_closing = False
        # One thread: when the volume hangs, the next look waits for the same one.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="configuration")
        now = clock.now()
        mode: Literal["watch", "off"] = "off" if self._origin is None else "watch"
        self.state = ReloadState(mode=mode, is_successful=True, read_at=now, succeeded_at=now)

    def open(self) -> None:
        """Begin to watch."""
        if self._origin is not None:
            self._task = asyncio.create_task(self._watch(), name="reload")

    async def close(self) -> None:
        """Stop watching; a change that is being put in force is so first, one that is being read is not."""
        self._is_closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._applying is not None:
            await asyncio.wait({self._applying})
        self._thread.shutdown(wait=False, cancel_futures=True)

    def look_now(self) -> None:
        """Read the files without waiting for a change: what SIGHUP asks for."""
        if self._origin is None:
            self._telemetry.emit(ReloadIsOff())
        self._asked.set()

    async def reload(self, *, actor: str) -> ReloadState:
        """Read the files now. Raises StateConflict when reload is off."""
        if self._origin is None or self._task is None:
            raise StateConflict(
                "the configuration is not read again while the daemon runs (daemon.reload is off)",
                suggestion="restart the daemon, or set daemon.reload to watch",
            )
        self._telemetry.emit(ReloadRequested(actor=actor))
        await self._reload(self._origin)
        return self.state

    async def _watch(self) -> None:
        assert self._origin is not None
        while True:
            await self._pause(_POLL)
            if self._asked.is_set():
                self._asked.clear()
                await self._reload(self._origin)
            elif self._is_unread or await self._has_changed():
                await self._reload(self._origin)

    async def _has_changed(self) -> bool:
        """Whether the files are others now, and were left alone for a second; or cannot be looked at."""
        began, is_told = self._clock.monotonic(), False
        before, now = self._seen, await self._look()
        while now != self._seen:
            if now is None or now == before or self._asked.is_set():
                return True
            if not is_told and self._clock.monotonic() - began > _UNSETTLED_AFTER:
                is_told = True
                self._telemetry.emit(ConfigurationUnsettled(seconds=self._clock.monotonic() - began))
            await self._pause(_QUIET)
            before, now = now, await self._look()
        return False

    async def _look(self) -> Seen | None:
        return await self._in_thread(lambda: look(self._seen))

    async def _reload(self, origin: ConfigurationOrigin) -> None:
        async with self._loading:
            loaded = await self._in_thread(origin.load)
            if loaded is None:
                self._is_unread = True
                self._refused([_UNREADABLE])
                return
            self._seen, self._is_unread = loaded.seen, False
            if loaded.configuration is None:
                self._refused(loaded.problems)
            elif not self._is_closing:
                # Not cancelled with the watch or with whoever asked: half of it must not stay in force.
                self._applying = asyncio.create_task(self._put_in_force(loaded.configuration), name="new configuration")
                await asyncio.shield(self._applying)

    async def _put_in_force(self, configuration: Configuration) -> None:
        try:
            changes = await self._apply(configuration)
        except Exception as error:  # noqa: BLE001  # whatever it is, the watch goes on; it may name what must not be shown
            message = f"the configuration could not be put in force: {type(error).__name__}"
            remedy = "restart the daemon, and report it"
            self._refused([Problem(place=_PLACE, code="internal", message=message, suggestion=remedy)])
            return
        was_refused = not self.state.is_successful
        self._telemetry.emit(
            ConfigurationApplied(
                added=changes.added, changed=changes.changed, removed=changes.removed, is_first_good=was_refused
            )
        )
        if changes.needs_restart and changes.needs_restart != self.state.needs_restart:
            self._telemetry.emit(RestartNeeded(keys=changes.needs_restart))
        now = self._clock.now()
        self.state = ReloadState(
            mode=self.state.mode,
            is_successful=True,
            read_at=now,
            succeeded_at=now,
            added=changes.added,
            changed=changes.changed,
            removed=changes.removed,
            needs_restart=changes.needs_restart,
        )

    def _refused(self, problems: Sequence[Problem]) -> None:
        is_new = tuple(problems) != tuple(self.state.problems)
        self._telemetry.emit(ConfigurationRefused(problems=[str(each) for each in problems], is_new=is_new))
        self.state = replace(self.state, is_successful=False, read_at=self._clock.now(), problems=tuple(problems))

    async def _pause(self, seconds: float) -> None:
        """Wait, unless somebody asks."""
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            return

    async def _in_thread(self, work: Callable[[], _T]) -> _T | None:
        """What it gives; None when the disk takes too long."""
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done, _ = await asyncio.wait({future}, timeout=_READ_DEADLINE)
        if not done:
            future.cancel()  # when it has not begun; one that runs is waited for by the next
            return None
        return future.result()

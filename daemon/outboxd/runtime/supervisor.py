"""All pipelines of this replica: their actors, the target states that they follow, and whether all of that lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from outboxd.errors import OutboxdError, PipelineUnknown, StateConflict
from outboxd.lifecycle import PipelineState, TargetState
from outboxd.ports import Clock, Target, TargetStore
from outboxd.runtime.actor import PipelineActor
from outboxd.runtime.status import UNSETTLED, PipelineStatus, Reason, reason_of
from outboxd.telemetry.audit import RestartRequested, TargetChanged
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.pipelines import TargetsUnread

__all__ = ["Supervisor"]

_POLL: Final = 2.0
_LOAD_DEADLINE: Final = 10.0
_SILENT_AFTER: Final = 30.0
_REMOVED: Final = Reason(code="removed", message="it is no longer in the configuration")


class Supervisor:
    """Owns the actors and one task that follows the target states.

    With ``is_shared`` the store is read every 2 s, so that a change made through one replica reaches all of them.
    ``on_gone`` is told of each removed pipeline once it has drained, and whether that was clean.
    """

    def __init__(
        self,
        actors: Sequence[PipelineActor],
        *,
        targets: TargetStore,
        is_shared: bool,
        clock: Clock,
        telemetry: Telemetry,
        on_gone: Callable[[str, bool], None] = lambda _name, _is_clean: None,
    ) -> None:
        self.is_shared = is_shared
        self._actors = {actor.name: actor for actor in actors}
        self._targets = targets
        self._clock = clock
        self._telemetry = telemetry
        self._on_gone = on_gone
        self._tasks: dict[PipelineActor, asyncio.Task[None]] = {}
        self._leaving: set[PipelineActor] = set()
        """Removed, and draining; one that has the name of a pipeline which was added since is seen here only."""
        self._follower: asyncio.Task[None] | None = None
        self._is_waited_for = asyncio.Event()
        """Set when a pipeline waits for its target: it is read at once."""
        # A change is stored and carried out under this lock: a load that was read before it must not undo it.
        self._changing = asyncio.Lock()
        self._beat = clock.monotonic()
        self._is_closing = False
        self._has_settled = False
        self._unread: str | None = None

    # -- life --------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Start every actor; each waits until its target state is known."""
        for actor in self._actors.values():
            self._start(actor)
        self._follower = asyncio.create_task(self._follow(), name="supervisor")

    def _start(self, actor: PipelineActor) -> None:
        self._tasks[actor] = asyncio.create_task(actor.run(), name=f"actor {actor.name}")
        self._is_waited_for.set()

    async def close(self, within: float) -> bool:
        """Drain every pipeline, all at once; cancel what is left after ``within`` seconds. True when all ended cleanly."""
        self._is_closing = True
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.wait({self._follower})
        for actor in self._tasks:
            actor.close()
        tasks = set(self._tasks.values())
        late: set[asyncio.Task[None]] = set()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=within)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=within)
        is_clean = not late and not any(actor.is_unclean for actor in self._tasks)
        return is_clean and all(task.done() and not task.cancelled() and not task.exception() for task in tasks)

    async def _follow(self) -> None:
        """Read the target states until they are known, then only while other replicas may change them."""
        while True:
            self._beat = self._clock.monotonic()
            self._is_waited_for.clear()
            if self.is_shared or any(actor.target is None for actor in self._actors.values()):
                await self._load()
            try:
                async with asyncio.timeout(_POLL):
                    await self._is_waited_for.wait()
            except TimeoutError:
                continue

    async def _load(self) -> None:
        try:
            async with self._changing, asyncio.timeout(_LOAD_DEADLINE):
                stored = await self._targets.load()
                for name, actor in self._actors.items():
                    self._follow_one(actor, stored.get(name))
        except (OutboxdError, TimeoutError, OSError) as error:
            message = reason_of(error).message
            if message != self._unread:  # said once, not every two seconds of an outage
                self._telemetry.emit(TargetsUnread(message=message))
            self._unread = message
            for actor in self._actors.values():
                actor.target_unread(f"the target states cannot be read: {message}")
            return
        self._unread = None

    def _follow_one(self, actor: PipelineActor, stored: Target | None) -> None:
        if stored is None and actor.target is not None:
            return
        target = stored or Target(state=TargetState.STARTED, actor="default", at=self._clock.now())
        if actor.target is None or actor.target != target:
            if actor.target is not None:
                self._audit(actor, target)
            actor.set_target(target)

    # -- pipelines come and go ---------------------------------------------------------------------------------------

    def add(self, actor: PipelineActor) -> None:
        """Begin with this pipeline; its target state is what was stored for its name, or started."""
        self._actors[actor.name] = actor
        self._start(actor)

    def remove(self, pipeline: str) -> None:
        """Drain this pipeline, then forget it. Raises PipelineUnknown."""
        actor = self._actor(pipeline)
        if actor in self._leaving:
            return
        self._leaving.add(actor)
        actor.close(_REMOVED)
        self._tasks[actor].add_done_callback(lambda _: self._gone(actor))

    def _gone(self, actor: PipelineActor) -> None:
        if self._is_closing:
            return
        self._leaving.discard(actor)
        del self._tasks[actor]
        if self._actors[actor.name] is actor:
            del self._actors[actor.name]
            self._on_gone(actor.name, not actor.is_unclean)

    def present(self, pipeline: str) -> PipelineActor | None:
        """The actor of a pipeline that is here to stay."""
        actor = self._actors.get(pipeline)
        return None if actor in self._leaving else actor

    # -- what is asked of it -----------------------------------------------------------------------------------------

    async def set_target(self, pipeline: str, state: TargetState, *, actor: str, reason: str | None = None) -> None:
        """Store what is wanted, then carry it out. Raises PipelineUnknown, DatabaseUnreachable, ConfigurationError."""
        changed = self._staying(pipeline)
        target = Target(state=state, actor=actor, at=self._clock.now(), reason=reason)
        async with self._changing:
            async with asyncio.timeout(_LOAD_DEADLINE):
                await self._targets.save(pipeline, target)
            self._audit(changed, target)
            changed.set_target(target)

    def restart(self, pipeline: str, *, actor: str) -> None:
        """Drain and start anew, in this replica. Raises PipelineUnknown, StateConflict."""
        restarted = self._staying(pipeline)
        restarted.restart()
        self._telemetry.emit(RestartRequested(pipeline=pipeline, state=restarted.state, actor=actor))

    def status(self, pipeline: str) -> PipelineStatus:
        """Raises PipelineUnknown."""
        return self._actor(pipeline).status()

    def statuses(self) -> Sequence[PipelineStatus]:
        """Every pipeline's status, by name."""
        return [actor.status() for _, actor in sorted(self._actors.items())]

    def targets(self) -> Mapping[str, Target]:
        """What is wanted of each pipeline, as far as it is known."""
        return {name: actor.target for name, actor in self._actors.items() if actor.target is not None}

    @property
    def is_alive(self) -> bool:
        """Whether the supervisor does its work: every actor's task and its own run, and it was heard of lately."""
        if self._is_closing:
            return True
        staying = [task for actor, task in self._tasks.items() if actor not in self._leaving]
        tasks = [*staying, *([] if self._follower is None else [self._follower])]
        has_tasks = self._follower is not None and not any(task.done() for task in tasks)
        return has_tasks and self._clock.monotonic() - self._beat < _SILENT_AFTER

    @property
    def is_settled(self) -> bool:
        """Whether each pipeline got as far as it can be said how it is, once: later restarts unready nobody."""
        if not self._has_settled:
            self._has_settled = all(actor.state not in UNSETTLED for actor in self._actors.values())
        return self._has_settled

    @property
    def degraded(self) -> Sequence[PipelineStatus]:
        """Pipelines that are wanted and do not make progress."""
        bad = {PipelineState.STALLED, PipelineState.FAILED, PipelineState.RESTARTING}
        return [status for status in self.statuses() if status.state in bad]

    def _actor(self, pipeline: str) -> PipelineActor:
        try:
            return self._actors[pipeline]
        except KeyError:
            known = ", ".join(sorted(self._actors)) or "none"
            raise PipelineUnknown(
                f"there is no pipeline {pipeline!r}", suggestion=f"pipelines of this daemon: {known}"
            ) from None

    def _staying(self, pipeline: str) -> PipelineActor:
        actor = self._actor(pipeline)
        if actor in self._leaving:
            raise StateConflict(
                f"pipeline {pipeline!r} is no longer in the configuration and ends",
                suggestion="put it back into the configuration to keep it",
            )
        return actor

    def _audit(self, actor: PipelineActor, target: Target) -> None:
        before = None if actor.target is None else actor.target.state
        self._telemetry.emit(
            TargetChanged(
                pipeline=actor.name, before=before, after=target.state, actor=target.actor, reason=target.reason
            )
        )

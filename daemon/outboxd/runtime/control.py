"""What may be asked of a running daemon: the one object that REST and an embedding program hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from outboxd.ports import ReplayJob
from outboxd.runtime.letter_desk import LetterDesk
from outboxd.runtime.reload import Reloader
from outboxd.runtime.supervisor import Supervisor
from outboxd.telemetry.audit import ReplayRequested
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Control", "PluginInfo", "Readiness"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginInfo:
    """An installed plugin type."""

    kind: str
    name: str
    distribution: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """Whether the daemon does its work; ``degraded`` names pipelines with trouble of their own, which do not unready it."""

    is_ready: bool
    state: Literal["starting", "ready", "draining"]
    degraded: Sequence[Mapping[str, str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Everything that people and machines may see and do."""

    name: str
    version: str
    instance: str
    supervisor: Supervisor
    letters: LetterDesk
    telemetry: Telemetry
    metrics_page: Callable[[], bytes] | None
    metrics_content_type: str
    plugins: Callable[[], Sequence[PluginInfo]]
    configuration: Callable[[], Mapping[str, object]]
    reloader: Reloader
    is_draining: Callable[[], bool]

    def readiness(self) -> Readiness:
        """Ready once each pipeline has got as far as it can be said how it is, until the drain."""
        degraded = [
            {"name": status.name, "state": status.state.value, "reason": status.reason}
            for status in self.supervisor.degraded
        ]
        if self.is_draining():
            return Readiness(is_ready=False, state="draining", degraded=degraded)
        if not self.supervisor.is_settled:
            return Readiness(is_ready=False, state="starting", degraded=degraded)
        return Readiness(is_ready=True, state="ready", degraded=degraded)

    @property
    def scope(self) -> Literal["this replica", "all replicas"]:
        """How far a change of a target reaches."""
        return "all replicas" if self.supervisor.is_shared else "this replica"

    async def create_replay(self, letter_ids: Sequence[UUID], *, actor: str) -> ReplayJob:
        """As `LetterDesk.create_replay`, with its audit line."""
        job = await self.letters.create_replay(letter_ids, actor=actor)
        self.telemetry.emit(ReplayRequested(job_id=job.id, letter_ids=letter_ids, actor=actor))
        return job

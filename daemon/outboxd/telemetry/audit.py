"""What people asked of the daemon: one line per mutation, with who, what, before and after. Never a payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from outboxd.lifecycle import PipelineState, TargetState

if TYPE_CHECKING:
    from outboxd.api.context import Logger
    from outboxd.telemetry.metrics import Instruments

__all__ = ["ReloadRequested", "ReplayRequested", "RestartRequested", "TargetChanged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChanged:
    """Somebody wants something else of a pipeline."""

    pipeline: str
    before: TargetState | None
    after: TargetState
    actor: str
    reason: str | None

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """Who, what, before, after."""
        logger.info(
            "target_changed",
            audit=True,
            pipeline=self.pipeline,
            before=None if self.before is None else self.before.value,
            after=self.after.value,
            actor=self.actor,
            reason=self.reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequested:
    """Somebody had a pipeline restarted."""

    pipeline: str
    state: PipelineState
    actor: str

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """Who, what, and how it was before."""
        logger.info("restart_requested", audit=True, pipeline=self.pipeline, before=self.state.value, actor=self.actor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadRequested:
    """Somebody had the configuration read again."""

    actor: str

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """Who; what came of it is told by the events of the configuration."""
        logger.info("reload_requested", audit=True, actor=self.actor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRequested:
    """Somebody had letters replayed."""

    job_id: UUID
    letter_ids: Sequence[UUID]
    actor: str

    def record(self, logger: Logger, _instruments: Instruments, /) -> None:
        """Who, and which letters; of many, the first ten."""
        logger.info(
            "replay_requested",
            audit=True,
            job_id=str(self.job_id),
            letters=len(self.letter_ids),
            letter_ids=[str(each) for each in self.letter_ids[:10]],
            actor=self.actor,
        )

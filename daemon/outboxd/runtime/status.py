"""What a pipeline's status is made of: the values behind REST, the command line and readiness."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from outboxd.errors import OutboxdError, PipelineStopped
from outboxd.lifecycle import PipelineState, TargetState

__all__ = ["UNSETTLED", "PipelineStatus", "Reason", "deciding", "reason_of"]

UNSETTLED: Final = frozenset({PipelineState.CREATED, PipelineState.STARTING})
"""States in which nobody can say yet how a pipeline is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a pipeline is as it is: a stable code and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """One pipeline of this replica. ``since`` is when it came into its state; ``restarts`` counts since the process began."""

    name: str
    kind: str
    target: TargetState
    state: PipelineState
    reason: str | None
    message: str | None
    since: datetime
    restarts: int
    detail: Mapping[str, object] = field(default_factory=dict)


def deciding(error: BaseException) -> BaseException:
    """The error that says what happened: of a group of tasks that fell together a `PipelineStopped`, else the first."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    stopped, _ = error.split(PipelineStopped)
    return deciding((stopped or error).exceptions[0])


def reason_of(error: BaseException) -> Reason:
    """The code and the sentence of an error, remedy included."""
    error = deciding(error)
    if isinstance(error, OutboxdError):
        return Reason(code=error.code, message=error.told)
    said = str(error)
    return Reason(code="internal", message=f"{type(error).__name__}: {said}" if said else type(error).__name__)

"""Target states: where what the operator wants survives a restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from outboxd.lifecycle import TargetState

__all__ = ["Target", "TargetStore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the operator wants of a pipeline; who said so, when and why."""

    state: TargetState
    actor: str
    at: datetime
    reason: str | None = None


class TargetStore(Protocol):
    """Where target states survive a restart."""

    async def load(self) -> Mapping[str, Target]:
        """Every stored target by pipeline name."""
        ...

    async def save(self, pipeline: str, target: Target) -> None:
        """Store durably before the change is carried out."""
        ...

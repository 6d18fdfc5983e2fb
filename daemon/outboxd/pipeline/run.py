"""One start of a pipeline as the supervisor sees it: run, stop, and how it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

__all__ = ["Health", "PipelineRun", "Stall"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Why a pipeline wants to make progress and cannot.

    ``reason`` is a code: `broker_unreachable`, `database_unreachable`, `chain_exhausted`, `letter_refused`,
    `handler_stuck`, `partition_parked`, `keys_blocked`, `topic_failed`, `mark_refused`, `dependency_out` (the breaker is
    open), `schema_behind`.
    """

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a run is at this moment. ``is_ready`` turns true once it has opened everything and works."""

    is_ready: bool
    stall: Stall | None = None
    detail: Mapping[str, object] = field(default_factory=dict)


class PipelineRun(Protocol):
    """A pipeline from one start to its end; a restart makes a new object."""

    async def run(self) -> None:
        """Open, work, and return once `stop` was called and everything in hand is finished and given back.

        Outages do not end it: they show in `health` and it goes on by itself. Raises the error that ended it
        otherwise; cancelled, it gives back what it can within a second and leaves no task.
        """
        ...

    def stop(self) -> None:
        """Ask it to drain: take nothing in, finish, commit or mark, give leases and partitions back. Idempotent."""
        ...

    def health(self) -> Health:
        """How it is; cheap, called about once a second."""
        ...

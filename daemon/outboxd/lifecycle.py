"""The states of a pipeline: what is (`PipelineState`) and what the operator wants (`TargetState`).

Moves go through one compare-and-set against the table `EDGES`; documentation and tests are generated from that table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from outboxd.errors import StateConflict

__all__ = ["EDGES", "Lifecycle", "PipelineState", "TargetState"]


class PipelineState(StrEnum):
    """What a pipeline is doing in this replica."""

    CREATED = "CREATED"
    """Configured; nothing opened yet."""
    STARTING = "STARTING"
    """Opening connections, joining, taking leases."""
    RUNNING = "RUNNING"
    """Making progress, or idle with nothing pending (invariant 12)."""
    STALLED = "STALLED"
    """Wants to make progress and cannot; the status says why. Goes on by itself when the reason is gone."""
    PAUSED = "PAUSED"
    """Asked to pause: nothing is taken in, everything is kept."""
    DRAINING = "DRAINING"
    """Intake is closed; what is in hand is being finished."""
    STOPPED = "STOPPED"
    """Asked to stop, and stopped."""
    FAILED = "FAILED"
    """Ended by an error; started again after a wait that grows, unless the reason says that a person must act."""
    RESTARTING = "RESTARTING"
    """About to be started again, after a failure or on request."""


class TargetState(StrEnum):
    """What the operator wants of a pipeline. Survives restarts."""

    STARTED = "started"
    PAUSED = "paused"
    STOPPED = "stopped"


_S = PipelineState

EDGES: Final[Mapping[PipelineState, frozenset[PipelineState]]] = MappingProxyType(
    {
        _S.CREATED: frozenset({_S.STARTING, _S.PAUSED, _S.STOPPED}),
        _S.STARTING: frozenset({_S.RUNNING, _S.STALLED, _S.DRAINING, _S.FAILED}),
        _S.RUNNING: frozenset({_S.STALLED, _S.DRAINING, _S.FAILED}),
        _S.STALLED: frozenset({_S.RUNNING, _S.DRAINING, _S.FAILED}),
        _S.DRAINING: frozenset({_S.PAUSED, _S.STOPPED, _S.RESTARTING, _S.FAILED}),
        _S.PAUSED: frozenset({_S.STARTING, _S.STOPPED, _S.RESTARTING}),
        _S.STOPPED: frozenset({_S.STARTING, _S.PAUSED}),
        _S.FAILED: frozenset({_S.RESTARTING, _S.PAUSED, _S.STOPPED}),
        _S.RESTARTING: frozenset({_S.STARTING, _S.PAUSED, _S.STOPPED}),
    }
)
"""For each state the states that may follow it."""


class Lifecycle:
    """One pipeline's state, moved by compare-and-set only.

    ``on_move(before, after)`` is called after each successful move, in the order of the moves; it must not raise.
    """

    __slots__ = ("_on_move", "_state")

    def __init__(self, on_move: Callable[[PipelineState, PipelineState], None] | None = None) -> None:
        self._state = PipelineState.CREATED
        self._on_move = on_move

    @property
    def state(self) -> PipelineState:
        """The state now."""
        return self._state

    def move(self, expected: PipelineState, to: PipelineState) -> None:
        """Go from ``expected`` to ``to``.

        Raises StateConflict when the state is not ``expected`` (somebody else moved it) or there is no such edge.
        """
        if self._state is not expected:
            raise StateConflict(f"the pipeline is {self._state}, not {expected}: it cannot go to {to}")
        if to not in EDGES[expected]:
            raise StateConflict(f"a pipeline cannot go from {expected} to {to}")
        self._state = to
        if self._on_move is not None:
            self._on_move(expected, to)

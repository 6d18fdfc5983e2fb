"""The table of edges and the compare-and-set, walked over the whole square."""

from __future__ import annotations

from itertools import product

import pytest

from outboxd.errors import StateConflict
from outboxd.lifecycle import EDGES, Lifecycle, PipelineState


def _at(state: PipelineState) -> Lifecycle:
    lifecycle = Lifecycle()
    lifecycle._state = state
    return lifecycle


@pytest.mark.parametrize(("before", "after"), list(product(PipelineState, PipelineState)))
def test_exactly_the_edges_of_the_table_can_be_walked(before: PipelineState, after: PipelineState) -> None:
    lifecycle = _at(before)
    if after in EDGES[before]:
        lifecycle.move(before, after)
        assert lifecycle.state is after
    else:
        with pytest.raises(StateConflict):
            lifecycle.move(before, after)
        assert lifecycle.state is before


def test_a_move_from_a_state_that_is_not_the_present_one_is_refused() -> None:
    lifecycle = _at(PipelineState.RUNNING)
    with pytest.raises(StateConflict, match="is RUNNING, not STALLED"):
        lifecycle.move(PipelineState.STALLED, PipelineState.DRAINING)


def test_every_state_can_be_reached_and_left() -> None:
    assert set(EDGES) == set(PipelineState)
    reached = {PipelineState.CREATED}.union(*EDGES.values())
    assert reached == set(PipelineState)
    assert all(EDGES.values())


def test_whoever_listens_is_told_of_moves_in_their_order() -> None:
    moves: list[tuple[PipelineState, PipelineState]] = []
    lifecycle = Lifecycle(lambda before, after: moves.append((before, after)))
    lifecycle.move(PipelineState.CREATED, PipelineState.STARTING)
    lifecycle.move(PipelineState.STARTING, PipelineState.RUNNING)
    assert moves == [
        (PipelineState.CREATED, PipelineState.STARTING),
        (PipelineState.STARTING, PipelineState.RUNNING),
    ]

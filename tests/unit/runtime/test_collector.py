"""The cyclic collector of the daemon's process."""

from __future__ import annotations

import gc

from outboxd.runtime.collector import relax_collector


def test_what_was_made_before_the_start_is_not_looked_at_again_and_cycles_made_later_are_found() -> None:
    before = gc.get_threshold()
    try:
        relax_collector()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] > before[0]
        assert gc.isenabled()
        cycle: list[object] = []
        cycle.append(cycle)
        del cycle
        assert gc.collect() >= 1
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)

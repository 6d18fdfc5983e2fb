"""The cyclic collector, told what kind of process this is: much that lives for ever, and many short-lived values without cycles."""

from __future__ import annotations

import gc
from typing import Final

__all__ = ["relax_collector"]

_THRESHOLDS: Final = (20_000, 20, 50)
"""Young containers between two looks, and how many looks of one generation make one of the next."""


def relax_collector() -> None:
    """Leave what was made so far out of every later look, and look less often.

    Rows and records hold no cycles: counting references frees them. By default the collector walks over them, and over all
    modules, each time that 700 more containers are alive, which is after every page that is fetched.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)

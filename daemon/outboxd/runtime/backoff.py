"""How long a failed pipeline waits for its next start: pure arithmetic."""

from __future__ import annotations

from typing import Final

__all__ = ["STABLE_AFTER", "restart_delay"]

STABLE_AFTER: Final = 300.0
"""Seconds of running after which earlier failures are forgotten."""
_QUICK: Final = 7
_LONGEST: Final = 3600.0


def restart_delay(failures: int) -> float:
    """Seconds to wait after so many failures in a row (from 1).

    Doubling from 1 s to 60 s for the first seven, which covers a restart of something nearby; then n²+n minutes
    (2, 6, 12, 20 ...) up to an hour, so that what is broken for good costs nothing and is still tried.
    """
    if failures <= _QUICK:
        return min(2.0 ** (failures - 1), 60.0)
    n = failures - _QUICK
    return min((n * n + n) * 60.0, _LONGEST)

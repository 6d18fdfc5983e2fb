"""`did you mean`, for keys, values and names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["closest"]


def closest(written: str, known: Iterable[str]) -> str:
    """The known name that is closest to what was written, else all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(written, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are: {', '.join(names)}" if names else "there is none yet"

"""The tree of errors: drawn, coded, documented."""

from __future__ import annotations

import re
from collections.abc import Iterator

from outboxd import errors
from outboxd.errors import OutboxdError


def _all(root: type[OutboxdError]) -> Iterator[type[OutboxdError]]:
    """The tree of this module; layers above have errors of their own that only they raise and catch."""
    if root.__module__ == errors.__name__:
        yield root
    for child in root.__subclasses__():
        yield from _all(child)


def _drawn() -> list[str]:
    assert errors.__doc__ is not None
    return [match[1] for line in errors.__doc__.splitlines() if (match := re.match(r"[ │├└─]*([A-Z]\w+)\b", line))]


def test_the_tree_at_the_top_is_the_tree_below() -> None:
    drawn = [name for name in _drawn() if hasattr(errors, name)]
    assert sorted(drawn) == sorted({cls.__name__ for cls in _all(OutboxdError)})
    assert sorted(errors.__all__) == sorted(drawn)


def test_every_error_has_a_code_of_its_own_and_a_sentence() -> None:
    classes = list(_all(OutboxdError))
    codes = [cls.__dict__.get("code") for cls in classes]
    assert None not in codes
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z][a-z_]*", str(code)) for code in codes)
    assert all(cls.__doc__ for cls in classes)

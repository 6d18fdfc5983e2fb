"""What never leaves the process: secrets are taken out of whatever is about to be printed (invariant 11)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = ["MASK", "Redactor"]

MASK: Final = "***"
_SECRET_NAME: Final = re.compile(
    r"pass(word|wd)?$|secret|token$|credential|authorization|api_?key|private_?key", re.IGNORECASE
)
_IN_TEXT: Final = re.compile(
    r"(?P<url>\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)(?P<inline>[^\s/]*)(?=@)"
    r"|(?P<pair>\b(?:password|passwd|pwd|secret|token)\s*[=:]\s*)(?P<value>'[^']*'|\"[^\"]*\"|[^\s,;&)'\"]+)",
    re.IGNORECASE,
)
_SHORTEST: Final = 4
_MOST: Final = 1000
"""Secrets that are remembered: those of now, and of rotated ones the latest."""
_WORDS: Final = frozenset({"kafka", "outboxd", "password", "postgres", "postgresql"})


def _masked(found: re.Match[str]) -> str:
    # `postgresql://user:password@host` in a remedy shows how a DSN is written.
    return found[0] if found["inline"] == "password" else f"{found['url'] or found['pair']}{MASK}"


class Redactor:
    """Masks by field name, by the shape of DSNs and `password=...` pairs, and by the secrets themselves.

    ``secrets`` are the values of the configuration's secret fields. Very short ones and those that are words of ours
    (a password `postgres`) are left out: masking each such word would make logs unreadable and hide nothing.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: tuple[str, ...] = ()
        self._known: re.Pattern[str] | None = None
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Mask these from now on, too. Older ones stay: what was made with them may still speak."""
        new = sorted({each for each in secrets if len(each) >= _SHORTEST and each not in _WORDS})
        self._secrets = (*new, *(each for each in self._secrets if each not in new))[:_MOST]
        # The longest first: a secret may contain another.
        known = sorted(self._secrets, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def text(self, text: str) -> str:
        """The text without secrets."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return _IN_TEXT.sub(_masked, text)

    def value(self, value: object, name: str = "") -> object:
        """The value without secrets, containers looked through; ``name`` is the field it stands in."""
        if name and value is not None and _SECRET_NAME.search(name) and not isinstance(value, bool | int | float):
            return MASK
        match value:
            case str():
                return self.text(value)
            case Mapping():
                return {key: self.value(item, str(key)) for key, item in value.items()}
            case list() | tuple():
                return [self.value(item) for item in value]
            case None | bool() | int() | float():
                return value
            case _:
                return self.text(str(value))

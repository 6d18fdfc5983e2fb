"""Action `sql`: a statement on the outbox's own connection, committed in one transaction with the mark."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Final

from pydantic import field_validator

from outboxd.api import PluginContext, PluginSettings, Published, StatelessPlugin

__all__ = ["SqlAction", "SqlActionSettings", "bind"]

_TOKENS: Final = re.compile(
    r"""
      (?P<skip> [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/
              | \$(?P<tag>[A-Za-z_]\w*|)\$ .*? \$(?P=tag)\$ )
    | (?P<identifier> [A-Za-z_][\w$]* )
    | \$ (?P<name> \w+ )
    | (?P<end> ; )
    """,
    re.VERBOSE | re.DOTALL,
)
_PARAMETERS: Final[Mapping[str, tuple[str, Callable[[Published], object]]]] = MappingProxyType(
    {
        "row_id": ("bigint", lambda published: published.row_id),
        "topic": ("text", lambda published: published.topic),
        "key": ("text", lambda published: _text(published.key, "key")),
        "value": ("text", lambda published: _text(published.value, "value")),
        "partition": ("integer", lambda published: published.partition),
        "offset": ("bigint", lambda published: published.offset),
        "timestamp": ("bigint", lambda published: published.timestamp),
        "idempotency_id": ("uuid", lambda published: published.idempotency_id),
    }
)


def _text(raw: bytes | None, what: str) -> str | None:
    if raw is None:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"the row's {what} is not UTF-8, so the statement cannot have it as ${what}") from None


def bind(statement: str) -> tuple[str, Sequence[str]]:
    """The statement with `$1`-style parameters, and the names that stand for them in their order.

    `$key` and the like are found outside of literals, quoted names and comments; each carries its type, so that
    `$key::bigint` casts a text. Raises ValueError for an unknown name, a positional parameter or a second statement.
    """
    names: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match["end"] is not None:
            if statement[match.end() :].strip():
                raise ValueError("one statement only: nothing may follow the semicolon")
            return ""
        name = match["name"]
        if name is None:
            return match[0]
        if name not in _PARAMETERS:
            close = difflib.get_close_matches(name, _PARAMETERS, n=1)
            hint = f"did you mean ${close[0]}?" if close else "known are $" + ", $".join(_PARAMETERS)
            raise ValueError(f"unknown parameter ${name}; {hint}")
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}::{_PARAMETERS[name][0]}"

    return _TOKENS.sub(replace, statement), names


class SqlActionSettings(PluginSettings):
    """Settings of action `sql`."""

    statement: str
    """One SQL statement. Parameters: `$row_id` (bigint), `$topic`, `$key`, `$value` (text), `$partition` (integer),
    `$offset`, `$timestamp` (bigint, milliseconds), `$idempotency_id` (uuid)."""

    @field_validator("statement")
    @classmethod
    def _is_one_statement(cls, statement: str) -> str:
        if not statement.strip():
            raise ValueError("the statement is empty")
        bind(statement)
        return statement


class SqlAction(StatelessPlugin):
    """Gives the core the statement for a row; stands last among the actions of its topic."""

    Settings: ClassVar[type[PluginSettings]] = SqlActionSettings

    def __init__(self, settings: SqlActionSettings, context: PluginContext) -> None:
        super().__init__(settings, context)
        self._sql, names = bind(settings.statement)
        self._getters = [_PARAMETERS[name][1] for name in names]

    def statement(self, published: Published) -> tuple[str, Sequence[object]]:
        """The statement and its values for this row. Raises ValueError when key or value must be text and are not."""
        return self._sql, [getter(published) for getter in self._getters]

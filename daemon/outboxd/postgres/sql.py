"""SQL as it stands in files: named queries and migrations, and the safe filling of the few places that vary."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from outboxd.errors import ConfigurationError

__all__ = ["filled", "migration_names", "migration_text", "query", "quoted_literal", "table_reference"]

_PLACE = re.compile(r"\{\{(\w+)\}\}")
_IDENTIFIER = r'(?:"(?:[^"\x00]|"")+"|[A-Za-z_\u0080-\uffff][\w$]*)'
_TABLE = re.compile(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})?", re.ASCII)


@cache
def query(name: str) -> str:
    """The text of `queries/<name>.sql`."""
    return _read(f"queries/{name}.sql")


def filled(name: str, parts: Mapping[str, str]) -> str:
    """The query with each ``{{place}}`` replaced; ``parts`` are SQL and come from the operator, never from data."""
    return _PLACE.sub(lambda place: parts[place[1]], query(name))


@cache
def migration_names() -> tuple[str, ...]:
    """The names of the migrations, in the order of their numbers, without `.sql`."""
    folder = files("outboxd.postgres").joinpath("migrations")
    return tuple(sorted(entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql")))


def migration_text(name: str) -> str:
    """The text of `migrations/<name>.sql`."""
    return _read(f"migrations/{name}.sql")


def table_reference(text: str) -> str:
    """The table as written (`orders`, `shop.orders`, `"Shop"."Orders"`), checked to be a name and nothing else.

    Raises ConfigurationError.
    """
    if not _TABLE.fullmatch(text):
        raise ConfigurationError(
            f"{text!r} is not the name of a table",
            suggestion='Write table or schema.table; a name with capitals or spaces stands in double quotes: "Outbox".',
        )
    return text


def quoted_literal(text: str) -> str:
    """The text as an SQL literal."""
    if "\x00" in text:
        raise ConfigurationError("Postgres has no text with a NUL character")
    escaped = text.replace("'", "''")
    return f"E'{escaped.replace(chr(92), chr(92) * 2)}'" if "\\" in text else f"'{escaped}'"


def _read(path: str) -> str:
    return files("outboxd.postgres").joinpath(path).read_text(encoding="utf-8")

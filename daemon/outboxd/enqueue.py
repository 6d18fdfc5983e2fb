"""Put a row into the outbox inside the caller's transaction, with the caller's own connection.

Light to import: no driver and no telemetry library is loaded here.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Protocol, overload

__all__ = ["HeaderValue", "HeadersLike", "enqueue"]

HeaderValue = str | bytes | None
HeadersLike = Mapping[str, HeaderValue] | Sequence[tuple[str, HeaderValue]]
"""Headers of a row: a mapping, or pairs where order or repeated names matter (jsonb keeps no order of a mapping)."""

_IDENTIFIER = r'(?:"(?:[^"\x00]|"")+"|[A-Za-z_\u0080-\uffff][\w$]*)'
_TABLE: Final = re.compile(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})?")
_TRACEPARENT: Final = "traceparent"


class _Async(Protocol):
    """asyncpg.Connection, psycopg.AsyncConnection, SQLAlchemy's AsyncSession and AsyncConnection."""

    @property
    def execute(self) -> Callable[..., Coroutine[Any, Any, Any]]: ...


class _Sync(Protocol):
    """psycopg.Connection, SQLAlchemy's Session and Connection."""

    @property
    def execute(self) -> Callable[..., Any]: ...


@overload
def enqueue(
    connection: _Async,
    topic: str,
    key: str | None,
    payload: object,
    headers: HeadersLike | None = None,
    table: str = "outboxd.outbox",
) -> Awaitable[int]: ...


@overload
def enqueue(
    connection: _Sync,
    topic: str,
    key: str | None,
    payload: object,
    headers: HeadersLike | None = None,
    table: str = "outboxd.outbox",
) -> int: ...


def enqueue(  # noqa: PLR0917 -- the order in which people know them from SQL
    connection: object,
    topic: str,
    key: str | None,
    payload: object,
    headers: HeadersLike | None = None,
    table: str = "outboxd.outbox",
) -> int | Awaitable[int]:
    """Insert one row into ``table`` and give its id; the record is published once the caller's transaction commits.

    Awaited with asyncpg, psycopg's AsyncConnection and SQLAlchemy's AsyncSession and AsyncConnection; called plainly
    with psycopg's Connection and SQLAlchemy's Session and Connection. It is one insert and neither begins nor commits:
    on an asyncpg connection outside a transaction the row stands by itself, which is rarely what you want.

    ``payload`` as bytes goes as it is, as str in UTF-8, anything else as compact JSON; None is a tombstone and needs a
    key. ``headers`` get the current OpenTelemetry span as `traceparent` unless they have one. Rows of one key are
    published in the order of their ids: writers of one aggregate insert while they hold its lock.

    Raises TypeError for a connection or a key of another type, ValueError for a row that could not be published.
    """
    table_name = _checked(topic, key, payload, table)
    values = (topic, key, _payload_bytes(payload), _headers_json(headers))
    match _driver(connection):
        case "asyncpg":
            return _with_asyncpg(connection, table_name, values)
        case "psycopg-async":
            return _with_async_psycopg(connection, table_name, values)
        case "psycopg":
            return _with_psycopg(connection, table_name, values)
        case "sqlalchemy-async":
            return _with_async_sqlalchemy(connection, table_name, values)
        case "sqlalchemy":
            return _with_sqlalchemy(connection, table_name, values)
        case _:
            kind = type(connection)
            raise TypeError(
                f"enqueue cannot use a {kind.__module__}.{kind.__qualname__}: pass the connection or session that your "
                "transaction runs on (asyncpg, psycopg 3 or SQLAlchemy), not a pool or an engine"
            )


# -- the row -----------------------------------------------------------------------------------------------------------


def _checked(topic: str, key: str | None, payload: object, table: str) -> str:
    if not isinstance(topic, str) or not topic:
        raise ValueError("the topic is missing")
    if key is not None and not isinstance(key, str):
        raise TypeError(
            f"the key is {type(key).__name__}: the outbox keeps keys as text; pass a str, for bytes their hex"
        )
    if payload is None and key is None:
        raise ValueError("payload None is a tombstone, which deletes a key, and the key is None: pass the key")
    for name, text in (("topic", topic), ("key", key)):
        if text is not None and "\x00" in text:
            raise ValueError(f"the {name} contains a NUL character, which Postgres has no text for")
    if not _TABLE.fullmatch(table):
        raise ValueError(f"{table!r} is not the name of a table; write schema.table, capitals in double quotes")
    return table


def _payload_bytes(payload: object) -> bytes | None:
    match payload:
        case None | bytes():
            return payload
        case bytearray() | memoryview():
            return bytes(payload)
        case str():
            return payload.encode()
        case _:
            text = json.dumps(payload, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return text.encode()


def _headers_json(headers: HeadersLike | None) -> str | None:
    traceparent = _current_traceparent()
    if headers is None:
        return None if traceparent is None else json.dumps({_TRACEPARENT: traceparent})
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    encoded = [(_header_name(name), _header_value(name, value)) for name, value in pairs]
    if traceparent is not None and all(name.lower() != _TRACEPARENT for name, _ in encoded):
        encoded.append((_TRACEPARENT, traceparent))
    return json.dumps(dict(encoded) if isinstance(headers, Mapping) else encoded)


def _header_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"header name {name!r} is not a str")
    if "\x00" in name:
        raise ValueError(f"header name {name!r} contains a NUL character")
    name.encode()  # raises for a lone surrogate, which is a ValueError
    return name


def _header_value(name: str, value: object) -> str | dict[str, str] | None:
    match value:
        case None:
            return None
        case str():
            data = value.encode()
            return {"base64": base64.b64encode(data).decode("ascii")} if b"\x00" in data else value
        case bytes() | bytearray() | memoryview():
            return {"base64": base64.b64encode(value).decode("ascii")}
        case _:
            raise TypeError(f"header {name!r} has a value of type {type(value).__name__}: pass str, bytes or None")


def _current_traceparent() -> str | None:
    # Whoever has a current span has loaded the library; nobody else pays for it.
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


# -- the drivers -------------------------------------------------------------------------------------------------------

_Values = tuple[str, str | None, bytes | None, str | None]


def _driver(connection: object) -> str | None:
    for kind in type(connection).__mro__:
        module, name = kind.__module__, kind.__qualname__
        match module.partition(".")[0]:
            case "asyncpg" if name in {"Connection", "PoolConnectionProxy"}:
                return "asyncpg"
            case "psycopg" if name in {"AsyncConnection", "Connection"}:
                return "psycopg-async" if name == "AsyncConnection" else "psycopg"
            case "sqlalchemy" if name in {"AsyncConnection", "AsyncSession", "async_scoped_session"}:
                return "sqlalchemy-async"
            case "sqlalchemy" if name in {"Connection", "Session", "scoped_session"}:
                return "sqlalchemy"
    return None


def _insert(table: str, topic: str, key: str, payload: str, headers: str) -> str:
    """The one statement. Headers go as text, so that a jsonb codec of the caller's does not encode them again."""
    return (
        f"insert into {table} (topic, key, payload, headers) values (cast({topic} as text), cast({key} as text), "  # noqa: S608 -- the table is checked to be a name, the rest are placeholders
        f"cast({payload} as bytea), cast(cast({headers} as text) as jsonb)) returning id"
    )


async def _with_asyncpg(connection: Any, table: str, values: _Values) -> int:
    return int(await connection.fetchval(_insert(table, "$1", "$2", "$3", "$4"), *values))


def _with_psycopg(connection: Any, table: str, values: _Values) -> int:
    from psycopg.rows import tuple_row

    # A cursor with rows of its own: the connection's may be dictionaries or models.
    with connection.cursor(row_factory=tuple_row) as cursor:
        return int(cursor.execute(_psycopg_insert(table), values).fetchone()[0])


async def _with_async_psycopg(connection: Any, table: str, values: _Values) -> int:
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(_psycopg_insert(table), values)
        return int((await cursor.fetchone())[0])


def _psycopg_insert(table: str) -> str:
    return _insert(table.replace("%", "%%"), *["%s"] * 4)


def _with_sqlalchemy(connection: Any, table: str, values: _Values) -> int:
    return int(connection.execute(*_sqlalchemy_insert(table, values)).scalar_one())


async def _with_async_sqlalchemy(connection: Any, table: str, values: _Values) -> int:
    return int((await connection.execute(*_sqlalchemy_insert(table, values))).scalar_one())


def _sqlalchemy_insert(table: str, values: _Values) -> tuple[Any, dict[str, object]]:
    from sqlalchemy import text

    names = ("topic", "key", "payload", "headers")
    places = [f":{name}" for name in names]
    return text(_insert(table.replace(":", "\\:"), *places)), dict(zip(names, values, strict=True))

"""One relay's table as the operator described it, and the SQL over it, made once for the types it turned out to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from outboxd.errors import ConfigurationError
from outboxd.postgres.sql import filled, table_reference

__all__ = ["DEFAULT_TABLE", "ColumnTypes", "OutboxColumns", "OutboxSql", "OutboxTable"]

DEFAULT_TABLE = "outboxd.outbox"

_MARKED = "published_at"
_TIMES = frozenset({"timestamp with time zone", "timestamp without time zone", "date"})
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_JSON = frozenset({"json", "jsonb"})
_TEXTS = frozenset({"text", "character varying", "character"})

# Milliseconds since the epoch, rounded down from the microseconds that Postgres keeps; never an error: what is infinite
# or out of range becomes a number that no topic takes.
_EPOCH_MS = (
    "case when isfinite(measured.ts) then floor(round(date_part('epoch', measured.ts) * 1e6) / 1000)::bigint"
    " when measured.ts > 'epoch' then 9223372036854775807 when measured.ts < 'epoch' then -9223372036854775808 end"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxColumns:
    """Columns or SQL expressions of the table. ``headers`` and ``timestamp`` may be None: no headers, time of sending."""

    id: str = "id"
    topic: str = "topic"
    key: str = "key"
    payload: str = "payload"
    headers: str | None = "headers"
    timestamp: str | None = "created_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxTable:
    """Where a relay's rows are and what becomes of them.

    ``where`` is an extra condition; ``marks`` is None to delete published rows, else column to SQL expression;
    ``pending`` is the condition that matches ``marks``.
    """

    name: str = DEFAULT_TABLE
    columns: OutboxColumns = field(default_factory=OutboxColumns)
    where: str | None = None
    marks: Mapping[str, str] | None = None
    pending: str | None = None

    @property
    def predicate(self) -> str:
        """The condition of pending rows."""
        pending = self.pending or (f"{_MARKED} is null" if self.marks is not None else None)
        parts = [f"({part})" for part in (self.where, pending) if part]
        return " and ".join(parts) or "true"

    @property
    def done(self) -> str:
        """The statement that marks rows, up to their id."""
        name = table_reference(self.name)
        if self.marks is None:
            return f"delete from {name} where {self.columns.id}"  # noqa: S608 -- the operator's own names
        assignments = ", ".join(f"{column} = {expression}" for column, expression in self.marks.items())
        return f"update {name} set {assignments} where ({self.predicate}) and {self.columns.id}"  # noqa: S608 -- as above

    @property
    def needs_mark_column(self) -> bool:
        """True for the default table when its published rows are kept."""
        return self.name == DEFAULT_TABLE and self.marks is not None and _MARKED in self.marks


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnTypes:
    """What `pg_typeof` says of the columns."""

    id: str
    topic: str
    key: str
    payload: str
    headers: str
    timestamp: str


class OutboxSql:
    """The statements over one table. Raises ConfigurationError for columns whose types cannot be relayed."""

    def __init__(self, table: OutboxTable, types: ColumnTypes, *, relay_id: UUID, shards: int, is_staged: bool) -> None:
        _refuse(table, types)
        parts = _selected(table) | {
            "shard": _shard(types, shards),
            "key_bytes": _as_bytes("measured.key", types.key),
            "pending_key_bytes": _as_bytes("pending.key", types.key),
            "payload_bytes": _as_bytes("measured.payload", types.payload),
            "payload_size": _size("pending.payload", types.payload),
            "timestamp_ms": _EPOCH_MS if types.timestamp in _TIMES else "measured.ts::bigint",
            "mark": table.done,
        }
        parts["row_hash"] = _row_hash(parts["key_bytes"], parts["payload_bytes"])
        parts |= _stage_parts(relay_id, parts["row_hash"], is_staged=is_staged)
        self.fetch = filled("outbox_fetch", parts)
        self.pending = filled("outbox_pending", parts)
        self.mark = filled("outbox_mark", parts)
        self.stage = filled("outbox_stage", parts)
        self.oldest = filled("outbox_oldest", parts)


def types_sql(table: OutboxTable) -> str:
    """The query for the table's `ColumnTypes`."""
    return filled("outbox_types", _selected(table))


def _selected(table: OutboxTable) -> dict[str, str]:
    columns = table.columns
    return {
        "table": table_reference(table.name),
        "id": columns.id,
        "topic": columns.topic,
        "key": columns.key,
        "payload": columns.payload,
        "headers": columns.headers or "null::jsonb",
        "timestamp": columns.timestamp or "null::timestamptz",
        "pending": table.predicate,
    }


def _stage_parts(relay_id: UUID, row_hash: str, *, is_staged: bool) -> dict[str, str]:
    if not is_staged:
        return {"stage_columns": "", "stage_join": "", "unstage": ""}
    return {
        "stage_columns": ', s.topic as sent_topic, s.partition as sent_partition, s."offset" as sent_offset, s.next_action',
        "stage_join": (
            f"\nleft join outboxd.outbox_stage s on s.relay_id = '{relay_id}' and s.row_id = measured.row_id"
            f" and s.row_hash = {row_hash}"
        ),
        "unstage": (
            f",\nunstaged as (delete from outboxd.outbox_stage where relay_id = '{relay_id}' and row_id = any(array("  # noqa: S608 -- a uuid
            "select d.row_id from unnest($4::bigint[], $5::bigint[]) as d(row_id, n) join held on held.n = d.n)))"
        ),
    }


def _shard(types: ColumnTypes, shards: int) -> str:
    key = "encode(o.key, 'hex')" if types.key == "bytea" else "o.key::text"
    return f"(hashtextextended(coalesce({key}, o.row_id::text), 0) & {shards - 1})::integer"


def _as_bytes(value: str, kind: str) -> str:
    return value if kind == "bytea" else f"convert_to({value}::text, 'UTF8')"


def _size(value: str, kind: str) -> str:
    """Bytes without reading what is stored outside the row, where the type allows it."""
    return f"octet_length({value})" if kind in _TEXTS | {"bytea"} else f"octet_length({value}::text)"


def _row_hash(key: str, payload: str) -> str:
    parts = ("convert_to(measured.topic::text, 'UTF8')", key, payload)
    marked = " || '\\x00'::bytea || ".join(f"coalesce('\\x01'::bytea || {part}, '')" for part in parts)
    return f"encode(sha256({marked}), 'hex')"


def _refuse(table: OutboxTable, types: ColumnTypes) -> None:
    wrong = None
    if types.id not in _INTEGERS:
        wrong = f"`id` is of type {types.id}: rows are ordered by an integer that grows, best an identity column"
    elif types.topic not in _TEXTS:
        wrong = f"`topic` is of type {types.topic}, not text"
    elif types.headers not in _JSON | _TEXTS:
        wrong = f"`headers` is of type {types.headers}, not jsonb"
    elif types.timestamp not in _TIMES | _INTEGERS:
        wrong = f"`timestamp` is of type {types.timestamp}, not timestamptz or milliseconds as bigint"
    if wrong is not None:
        raise ConfigurationError(
            f"outbox table {table.name}: column {wrong}", suggestion="Give another column or an SQL expression."
        )

"""The rows and records of every measurement: 400 bytes of JSON with a running number, so that each can be told apart."""

from __future__ import annotations

__all__ = ["BYTES", "KEYS", "PARTITIONS", "SLOW_KEYS", "key", "number", "value", "value_sql"]

BYTES = 400
KEYS = 1_000
PARTITIONS = 6
SLOW_KEYS = 100
"""Keys where the handler takes its time, in one partition."""

_FRAME = len('{"n": , "pad": ""}')
_PAD = "x" * BYTES


def key(n: int, keys: int = KEYS) -> bytes:
    """The key of record ``n``."""
    return b"key-%d" % (n % keys)


def value(n: int) -> bytes:
    """The value of record ``n``, written as Postgres writes jsonb, so that every way through it gives the same bytes."""
    digits = str(n)
    return f'{{"n": {digits}, "pad": "{_PAD[: BYTES - _FRAME - len(digits)]}"}}'.encode()


def value_sql(n: str) -> str:
    """`value` as an SQL expression of type text; ``n`` is one of an integer."""
    return f"""'{{"n": ' || {n} || ', "pad": "' || repeat('x', {BYTES - _FRAME} - length(({n})::text)) || '"}}'"""


def number(value: bytes) -> int:
    """The running number in a value. Raises ValueError for one that is not ours."""
    return int(value[len('{"n": ') : value.index(b",")])

"""Every identity that outboxd makes: rows, letters, idempotency, transactional ids, leases. Pure functions.

An identity is derived, never drawn, wherever a repeat must be recognised as one (invariants 3 and 6).
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID, uuid5

from outboxd.records import OutboxRow, RawRecord

__all__ = [
    "HEADER_LETTER",
    "HEADER_LETTER_ID",
    "HEADER_REPLAY",
    "HEADER_ROW_ID",
    "RESERVED_PREFIX",
    "TRANSACTIONAL_PREFIX",
    "content_hash",
    "drain_lease",
    "idempotency_id",
    "parse_row_identity",
    "record_letter_id",
    "row_identity",
    "row_letter_id",
    "shard_lease",
    "transactional_id",
]

RESERVED_PREFIX: Final = "outboxd-"
"""Header names under this prefix are ours."""
HEADER_ROW_ID: Final = "outboxd-id"
"""Carries `<relay id>:<row id>` on each relayed record."""
HEADER_LETTER_ID: Final = "outboxd-letter-id"
"""Carries the letter's id on records in a dead-letter topic and on replayed records."""
HEADER_LETTER: Final = "outboxd-letter"
"""Carries the rest of the letter as JSON on records in a dead-letter topic."""
HEADER_REPLAY: Final = "outboxd-replay"
"""Carries `<job>/<count>` on replayed records."""
TRANSACTIONAL_PREFIX: Final = "outboxd."
"""All transactional ids start with this: one prefixed ACL serves them."""

_NAMESPACE: Final = UUID("5b0c7f3e-52a1-5d0e-9f52-6f7574626f78")


def _join(*parts: object) -> str:
    """Parts as one string that no other list of parts gives: each is preceded by its length."""
    return "".join(f"{len(text)}:{text}" for text in map(str, parts))


def row_identity(relay_id: UUID, row_id: int) -> str:
    """What a row is called outside its table: `<relay id>:<row id>`, the value of header `outboxd-id`."""
    return f"{relay_id}:{row_id}"


def parse_row_identity(value: bytes | None) -> tuple[UUID, int] | None:
    """The relay id and row id of an `outboxd-id` header; None for anything that is not one."""
    if value is None:
        return None
    relay, _, row = value.partition(b":")
    try:
        return UUID(relay.decode("ascii")), int(row)
    except ValueError:
        return None


def transactional_id(relay_id: UUID, shard: int) -> str:
    """The transactional id under which one shard of a relay fences its producers."""
    return f"{TRANSACTIONAL_PREFIX}{relay_id}.{shard}"


def shard_lease(relay_id: UUID, shard: int) -> str:
    """The name of the lease row of one shard."""
    return f"relay:{relay_id}:{shard}"


def drain_lease(pipeline: str, sink: str, instance: str | None = None) -> str:
    """The name of the lease row of the job that carries a sink's letters home; a spool's has its daemon's instance."""
    return f"drain:{pipeline}:{sink}" + ("" if instance is None else f":{instance}")


def idempotency_id(relay_id: UUID, row_id: int, action: int) -> str:
    """The id that the action with this index gets for this row, each time it runs."""
    return str(uuid5(_NAMESPACE, _join("action", relay_id, row_id, action)))


def content_hash(key: bytes | None, value: bytes | None) -> str:
    """A hash of key and value that keeps None and empty apart; 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (key, value):
        digest.update(b"-" if part is None else b"%d:" % len(part) + part)
    return digest.hexdigest()


def record_letter_id(cluster_id: str, group: str, record: RawRecord) -> UUID:
    """The id of the letter of a consumed record: the same each time this record fails in this group (invariant 6).

    Timestamp and content tell the record from one at the same offset of a topic that was deleted and made again.
    """
    return uuid5(
        _NAMESPACE,
        _join(
            "record",
            cluster_id,
            group,
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            content_hash(record.key, record.value),
        ),
    )


def row_letter_id(cluster_id: str, pipeline: str, row: OutboxRow, identity: str) -> UUID:
    """The id of the letter of an outbox row; ``identity`` is what `row_identity` gives for it."""
    return uuid5(_NAMESPACE, _join("row", cluster_id, pipeline, row.topic, identity, content_hash(row.key, row.value)))

"""The values that travel: records, their headers and positions, outbox rows and dead letters. Frozen; no I/O.

Keys, values and header values are bytes or None everywhere in the core: None (absent) and ``b""`` (empty) are different
things, and nothing here decodes or re-encodes them (invariant 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple
from uuid import UUID

__all__ = [
    "NO_HEADERS",
    "Failure",
    "Header",
    "Headers",
    "Letter",
    "LetterStatus",
    "OutboxRow",
    "Position",
    "Published",
    "RawRecord",
    "Record",
    "Refused",
    "SentPosition",
    "Stage",
    "Stored",
    "TimestampType",
    "TopicPartition",
    "Verdict",
]

Header = tuple[str, bytes | None]
"""One header: its name and its value; None is Kafka's null value."""


class Headers(tuple[Header, ...]):
    """The headers of a record in their order; a name may occur several times, as in Kafka."""

    __slots__ = ()

    def get(self, name: str, default: bytes | None = None) -> bytes | None:
        """The value of the *last* header called ``name`` (Kafka's ``Headers.lastHeader``), else ``default``."""
        for header_name, value in reversed(self):
            if header_name == name:
                return value
        return default

    def get_all(self, name: str) -> list[bytes | None]:
        """Every value of the headers called ``name``, in order."""
        return [value for header_name, value in self if header_name == name]

    def without(self, *prefixes: str) -> Headers:
        """These headers less those whose names start with one of ``prefixes``."""
        return Headers(header for header in self if not header[0].startswith(prefixes))


NO_HEADERS: Final = Headers()


class TopicPartition(NamedTuple):
    """A partition of a topic; hashable and cheap, since it keys every map of the data path."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Position(NamedTuple):
    """Where one record stands in a topic."""

    topic: str
    partition: int
    offset: int


class TimestampType(StrEnum):
    """Who set a record's timestamp."""

    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"
    NONE = "NoTimestampType"


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRecord:
    """A record as the broker gave it; ``timestamp`` in milliseconds since the epoch, -1 for none."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers = NO_HEADERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a handler gets: ``value`` is what the codec made of ``raw_value``; ``attempt`` counts calls from 1."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: object
    raw_value: bytes | None
    headers: Headers = NO_HEADERS
    attempt: int = 1


class Verdict(StrEnum):
    """What becomes of a failed record."""

    RETRY = "retry"
    """Call the handler again, after a wait, while attempts last."""
    DEAD_LETTER = "dead_letter"
    """Down the chain at once."""
    SKIP = "skip"
    """Counted, logged, done."""
    PAUSE = "pause"
    """The dependency is out: nothing is charged, the whole pipeline waits (invariant 5)."""
    STOP = "stop"
    """The pipeline fails with this reason and waits for a person."""


class Stage(StrEnum):
    """Where a record failed."""

    FETCH = "fetch"
    DECODE = "decode"
    HANDLE = "handle"
    PUBLISH = "publish"
    ACTION = "action"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed call: the error, its record, the stage and the number of the call, from 1."""

    error: BaseException
    record: RawRecord
    stage: Stage
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SentPosition:
    """The broker's answer for a row, with the index of the first action that is not done yet."""

    topic: str
    partition: int
    offset: int
    next_action: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxRow:
    """A pending row of an outbox table.

    ``row_id`` is the identity column: row order within a key is its order. ``timestamp`` in milliseconds, None means
    now; one outside Kafka's range is given as it is, to be refused. ``sent`` is set when the row was published and only
    its actions are left. ``defect`` says why the row cannot be published as it stands (its headers are not readable):
    a record error; the timestamp of such a row is impossible too.
    """

    row_id: int
    shard: int
    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers = NO_HEADERS
    timestamp: int | None = None
    sent: SentPosition | None = None
    defect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What an action gets: a row that the broker acknowledged.

    ``idempotency_id`` is the same each time this action runs for this row, also after a restart.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp: int
    row_id: int
    idempotency_id: str


class LetterStatus(StrEnum):
    """Where a letter stands; the edges between these are kept by the home itself."""

    NEW = "NEW"
    BLOCKED = "BLOCKED"
    PROCESSING = "PROCESSING"
    REPLAYED = "REPLAYED"
    RESOLVED = "RESOLVED"
    FAILED = "FAILED"
    DISCARDED = "DISCARDED"
    ARCHIVED = "ARCHIVED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A dead-lettered record, whole: what it was, why it failed, and what decided.

    ``topic``, ``partition`` and ``offset`` are where the record stood (for a relay's row the target topic, -1 and -1).
    ``timestamp`` in milliseconds, -1 for none. ``attempts`` counts calls of the handler. ``rule`` names the rule, plugin
    or default that decided. Text fields are already sanitised and capped.
    """

    id: UUID
    pipeline: str
    group: str | None
    handler: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: Headers
    stage: Stage
    error_class: str
    error_root_class: str
    error_message: str
    error_traceback: str
    attempts: int
    first_failed_at: datetime
    last_failed_at: datetime
    rule: str
    fingerprint: str
    traceparent: str | None = None
    outbox_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A sink has the letter durably. ``detail`` says where, for people (`topic-3@17`, `segment 4`)."""

    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A sink cannot take this one letter (too large, invalid); the next sink is tried for it."""

    reason: str

"""The words in which stories about the stores are told; `double_stores.py` and `postgres_stores.py` understand them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Final, Protocol
from uuid import UUID, uuid4

from outboxd.ports import DrainStore, LeaseStore, LeaseToken, LetterStore, Notes, OutboxStore, Statement, TargetStore
from outboxd.records import NO_HEADERS, Headers, Letter, LetterStatus, Stage, TimestampType

__all__ = ["SHARDS", "TTL", "Home", "Loss", "Moved", "StoreWorld", "Stores", "Writing", "a_letter", "take"]

SHARDS: Final = 4
TTL: Final = timedelta(seconds=30)


class Home(LetterStore, DrainStore, Protocol):
    """Where letters are at home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """The stores as one replica has them."""

    leases: LeaseStore
    outbox: OutboxStore
    letters: Home
    targets: TargetStore


class Loss(Enum):
    """How a connection is lost in the middle of a call."""

    REQUEST = "the statement does not arrive"
    STATEMENT = "the server ends the session when the statement has done its work and is not committed"
    ANSWER = "the statement is committed and nobody hears of it"

    @property
    def is_done(self) -> bool:
        """Whether the call has taken effect."""
        return self is Loss.ANSWER


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One entry of a letter's history."""

    before: LetterStatus | None
    after: LetterStatus
    actor: str
    reason: str | None


class Writing(Protocol):
    """An application's open transaction."""

    async def insert(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS) -> int:
        """A row, which nobody else sees yet; its id."""
        ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...


class StoreWorld(Protocol):
    """One database, two replicas that use it, the applications that write to it, and what befalls them all.

    What is lost, is lost to the first replica: ``leases``, ``outbox``, ``letters``, ``targets``. ``other`` is the second.
    """

    leases: LeaseStore
    outbox: OutboxStore
    letters: Home
    targets: TargetStore
    other: Stores

    # -- applications and people

    def begin(self) -> AbstractAsyncContextManager[Writing]:
        """A transaction, rolled back in the end unless it was committed."""
        ...

    async def insert(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS) -> int:
        """A row in a transaction of its own; its id."""
        ...

    async def edit(self, row_id: int, value: bytes) -> None:
        """Change a pending row by hand."""
        ...

    async def delete(self, row_id: int) -> None:
        """Delete a row by hand."""
        ...

    def entry(self, line: int) -> Statement:
        """A statement that writes a line into the ledger of the application."""
        ...

    def refused(self) -> Statement:
        """A statement that fails with SQLSTATE 23514."""
        ...

    async def drop(self, letter_id: UUID) -> None:
        """Drop a letter as retention does."""
        ...

    # -- what is stored

    async def ledger(self) -> Sequence[int]:
        """The lines of the ledger, sorted."""
        ...

    async def staged(self) -> Sequence[int]:
        """The ids of rows that have a stage, sorted."""
        ...

    async def notes(self, lease: str) -> Notes:
        """The notes that stand with the lease."""
        ...

    async def history(self, letter_id: UUID) -> Sequence[Moved]:
        """Every move of the letter."""
        ...

    # -- what befalls

    async def later(self, seconds: float) -> None:
        """So many seconds pass, by the database's clock."""
        ...

    def losing(self, loss: Loss, call: str) -> AbstractAsyncContextManager[None]:
        """The next such call (a method's name; `mark_statements` for a mark with statements) loses its connection."""
        ...

    def belated(self, call: str) -> AbstractAsyncContextManager[None]:
        """The next such call loses its connection, and its statement travels on until `deliver`."""
        ...

    async def deliver(self) -> None:
        """The statement that travels arrives, and is carried out if it still can."""
        ...

    def go_down(self) -> None:
        """The server is away."""
        ...

    def come_up(self) -> None:
        """It is there again."""
        ...


async def take(leases: LeaseStore, name: str = "job", owner: str = "a") -> LeaseToken:
    """The lease, which must be free."""
    lease = await leases.acquire(name, owner, TTL)
    assert lease is not None
    return lease.token


def a_letter(number: int = 0, **changes: object) -> Letter:
    """A letter of the record at offset ``number``."""
    values: dict[str, object] = {
        "id": uuid4(),
        "pipeline": "establishment",
        "group": "establishment",
        "handler": "python",
        "topic": "orders.new",
        "partition": 0,
        "offset": number,
        "timestamp": 1_700_000_000_000,
        "timestamp_type": TimestampType.CREATE_TIME,
        "key": b"order-1",
        "value": b'{"total": 10}',
        "headers": Headers([("event", b"created")]),
        "stage": Stage.HANDLE,
        "error_class": "shop.domain.InvalidTransition",
        "error_root_class": "shop.domain.InvalidTransition",
        "error_message": "no",
        "error_traceback": "Traceback",
        "attempts": 1,
        "first_failed_at": datetime(2026, 1, 1, tzinfo=UTC),
        "last_failed_at": datetime(2026, 1, 1, tzinfo=UTC),
        "rule": "rules[0]",
        "fingerprint": "f1",
    }
    return Letter(**(values | changes))  # type: ignore[arg-type]  # the names are the fields'

"""Letters at home: storing, finding, moving, replaying and draining."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol
from uuid import UUID

from outboxd.ports.leases import LeaseToken
from outboxd.records import Letter, LetterStatus, Refused, Stored, TopicPartition

__all__ = ["DrainStore", "LetterFilter", "LetterPage", "LetterStore", "LetterView", "ReplayItem", "ReplayJob"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterView:
    """A letter as it stands in its home."""

    letter: Letter
    status: LetterStatus
    sink: str
    created_at: datetime
    updated_at: datetime
    replay_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters; None means any. Filters are ANDed."""

    pipeline: str | None = None
    topic: str | None = None
    status: LetterStatus | None = None
    error_class: str | None = None
    fingerprint: str | None = None
    key: bytes | None = None
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterPage:
    """Letters, newest first, and the cursor of the next page; None at the end."""

    items: Sequence[LetterView]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayItem:
    """One letter of a replay job, claimed by this replica. ``attempt`` counts this letter's claims by jobs."""

    job_id: UUID
    letter: Letter
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayJob:
    """A replay and how far it is. ``state``: WAITING, RUNNING, DONE, CANCELLED; ``reason`` says why it waits."""

    id: UUID
    state: str
    mode: str
    total: int
    sent: int
    resolved: int
    failed: int
    created_at: datetime
    actor: str
    reason: str | None = None
    letters: Sequence[UUID] = field(default=())


class LetterStore(Protocol):
    """The home of letters: the tables `letter_key`, `letter`, `letter_event`, `replay_job`, `replay_item`."""

    async def store(self, letters: Sequence[Letter], *, sink: str) -> Sequence[Stored | Refused]:
        """Write letters as NEW; one that is known already (same id) counts as stored and changes nothing.

        ``sink`` is the name of the sink that took the letters first. In one transaction, and row by row only when the
        whole was refused. Raises DatabaseUnreachable, SchemaBehind.
        """
        ...

    async def get(self, letter_id: UUID) -> LetterView:
        """Raises LetterUnknown."""
        ...

    async def find(self, wanted: LetterFilter, *, limit: int, cursor: str | None = None) -> LetterPage:
        """A page of letters, newest first, by keyset."""
        ...

    async def move(self, letter_ids: Sequence[UUID], to: LetterStatus, *, actor: str, reason: str | None) -> int:
        """Move letters by hand; the database refuses what the life cycle forbids (MoveRefused). Gives how many moved."""
        ...

    async def create_replay(self, letter_ids: Sequence[UUID], *, actor: str) -> ReplayJob:
        """Freeze the set of letters into an `in_place` job.

        Raises LetterUnknown, MoveRefused (a letter that cannot be replayed now, named with the reason).
        """
        ...

    async def replay(self, job_id: UUID) -> ReplayJob:
        """Raises LetterUnknown when there is no such job."""
        ...

    async def claim(
        self, *, pipeline: str, group: str, partitions: Collection[TopicPartition], owner: str, limit: int
    ) -> Sequence[ReplayItem]:
        """Take waiting items of letters of these partitions (NEW or FAILED to PROCESSING), one claim per letter.

        Items whose claimant has been silent for long (see `heartbeat`) are given back first.
        """
        ...

    async def heartbeat(self, owner: str) -> None:
        """Say that this claimant lives; claims of silent ones are given back after 60 seconds."""
        ...

    async def finish(self, item: ReplayItem, *, resolved: bool, error: str | None) -> None:
        """PROCESSING to RESOLVED, or to FAILED with the new error's text; the job's counts follow.

        Said again (its answer was lost) it changes nothing. Raises MoveRefused when the claim was given back meanwhile:
        then another run decides.
        """
        ...

    async def give_back(self, item: ReplayItem) -> None:
        """PROCESSING to the status before the claim; the item waits again. Nothing when the claim is gone."""
        ...


class DrainStore(Protocol):
    """Carries letters from another sink of the chain into the home, exactly once."""

    async def drain(self, letters: Sequence[Letter], *, sink: str, lease: LeaseToken, position: str) -> int:
        """In one transaction insert the letters that are not known yet and note ``position`` under the lease's epoch.

        Gives how many were new. Raises LeaseLost (then nothing was done), DatabaseUnreachable.
        """
        ...

"""Leases: the right to act for a shard or a job, under an epoch, judged by the database's clock alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

__all__ = ["Lease", "LeaseStore", "LeaseToken", "Notes"]

Notes = Mapping[str, int | str]
"""What an owner leaves for its successor, stored with the lease under its epoch.

A shard's notes map `topic-partition` texts to the first offset whose rows may not all be marked; a drain's map
`position` to where the sink's `read` goes on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseToken:
    """The right to act: one owner under one epoch. ``epoch`` grows with each take-over, never with a renewal."""

    name: str
    owner: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lease that was taken. ``is_clean`` when the last owner released it after draining; else its past is uncertain."""

    token: LeaseToken
    notes: Notes
    is_clean: bool


class LeaseStore(Protocol):
    """Lease rows in one database, judged by that database's clock alone."""

    async def join(self, group: str, member: str, ttl: timedelta) -> int:
        """Say that ``member`` of ``group`` lives for ``ttl`` from now; give the number of live members, it included."""
        ...

    async def leave(self, group: str, member: str) -> None:
        """Take the member out at once."""
        ...

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lease | None:
        """Take the lease when it is free or its owner was silent past its time; None when somebody else has it.

        Taking it makes ``epoch`` one larger. The row is created when there is none.
        """
        ...

    async def renew(self, token: LeaseToken, ttl: timedelta, notes: Notes | None = None) -> None:
        """Keep the lease for ``ttl`` from now and lay ``notes`` over the stored ones. Raises LeaseLost.

        Notes that are not named stay: a renewal that its owner gave up on may be carried out late, and must not take
        away what a newer one has noted. `release` replaces them all.
        """
        ...

    async def verify(self, token: LeaseToken) -> None:
        """Return when the token still holds, by the database's clock; raise LeaseLost otherwise."""
        ...

    async def release(self, token: LeaseToken, notes: Notes) -> None:
        """Free the lease at once, cleanly; no error when it is lost already."""
        ...

    async def owned(self, prefix: str) -> Mapping[str, tuple[str, float]]:
        """For each live lease whose name starts with ``prefix``: its owner and the seconds it has left."""
        ...

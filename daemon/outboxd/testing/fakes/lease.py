"""An in-memory lease store on a clock of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from outboxd.errors import LeaseLost
from outboxd.ports import Clock, Lease, LeaseToken, Notes
from outboxd.testing.fakes.faults import Faults

__all__ = ["FakeLeases"]


@dataclass(slots=True)
class _Row:
    owner: str | None = None
    epoch: int = 0
    until: float = 0.0
    notes: dict[str, int | str] = field(default_factory=dict)


class FakeLeases:
    """The lease port: rows with owner, epoch, time and notes; ``faults`` may befall each call."""

    def __init__(self, clock: Clock, faults: Faults | None = None) -> None:
        self.faults = Faults() if faults is None else faults
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._members: dict[str, dict[str, float]] = {}

    def holds(self, token: LeaseToken) -> bool:
        """Whether this owner has this epoch now, which every write under the lease checks."""
        row = self._rows.get(token.name)
        return row is not None and row.owner == token.owner and row.epoch == token.epoch

    def steal(self, name: str, owner: str, ttl: timedelta) -> LeaseToken:
        """Let somebody else take the lease now, as if its time had run out."""
        row = self._rows[name]
        row.owner, row.epoch, row.until = owner, row.epoch + 1, self._clock.monotonic() + ttl.total_seconds()
        return LeaseToken(name=name, owner=owner, epoch=row.epoch)

    def notes(self, name: str) -> Notes:
        """The notes that stand with the lease."""
        return dict(self._rows[name].notes)

    def note(self, token: LeaseToken, notes: Notes) -> None:
        """Lay notes over the stored ones as part of another write under the lease. Raises LeaseLost."""
        self._held(token).notes |= notes

    def epoch(self, name: str) -> int:
        """How often the lease was taken."""
        return self._rows[name].epoch

    async def join(self, group: str, member: str, ttl: timedelta) -> int:
        """Count the members that live, this one included."""

        def effect() -> int:
            now = self._clock.monotonic()
            members = self._members.setdefault(group, {})
            members[member] = now + ttl.total_seconds()
            return 1 + sum(until > now for other, until in members.items() if other != member)

        return await self.faults.around("join", effect)

    async def leave(self, group: str, member: str) -> None:
        """Forget the member."""
        await self.faults.around("leave", lambda: self._members.get(group, {}).pop(member, None))

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lease | None:
        """Take the lease when it is free, its time is over, or it is the owner's already, whose token was lost."""

        def effect() -> Lease | None:
            row = self._rows.setdefault(name, _Row())
            now = self._clock.monotonic()
            if row.owner not in {None, owner} and row.until > now:
                return None
            is_clean = row.owner is None
            row.owner, row.epoch, row.until = owner, row.epoch + 1, now + ttl.total_seconds()
            token = LeaseToken(name=name, owner=owner, epoch=row.epoch)
            return Lease(token=token, notes=dict(row.notes), is_clean=is_clean)

        return await self.faults.around("acquire", effect)

    async def renew(self, token: LeaseToken, ttl: timedelta, notes: Notes | None = None) -> None:
        """Keep it; an owner whom nobody replaced may renew late."""

        def effect() -> None:
            row = self._held(token)
            row.until = self._clock.monotonic() + ttl.total_seconds()
            if notes is not None:
                row.notes |= notes

        await self.faults.around("renew", effect)

    async def verify(self, token: LeaseToken) -> None:
        """Raise LeaseLost unless the token holds and its time is not over."""

        def effect() -> None:
            if self._held(token).until <= self._clock.monotonic():
                raise LeaseLost(f"the lease {token.name} has run out")

        await self.faults.around("verify", effect)

    async def release(self, token: LeaseToken, notes: Notes) -> None:
        """Free it, if it is still held."""

        def effect() -> None:
            if self.holds(token):
                row = self._rows[token.name]
                row.owner, row.notes = None, dict(notes)

        await self.faults.around("release", effect)

    async def owned(self, prefix: str) -> Mapping[str, tuple[str, float]]:
        """The leases that somebody holds now."""

        def effect() -> Mapping[str, tuple[str, float]]:
            now = self._clock.monotonic()
            return {
                name: (row.owner, row.until - now)
                for name, row in self._rows.items()
                if name.startswith(prefix) and row.owner is not None and row.until > now
            }

        return await self.faults.around("owned", effect)

    def _held(self, token: LeaseToken) -> _Row:
        if not self.holds(token):
            raise LeaseLost(f"the lease {token.name} is not {token.owner}'s under epoch {token.epoch} any more")
        return self._rows[token.name]

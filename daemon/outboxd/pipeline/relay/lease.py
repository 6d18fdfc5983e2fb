"""A lease that this relay holds: renewed in time, with the notes, and never believed in longer than it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta

from outboxd.errors import DatabaseError, LeaseLost
from outboxd.pipeline.relay.dependencies import Dependency, database_call
from outboxd.ports import Clock, LeaseStore, LeaseToken

__all__ = ["HeldLease"]


class HeldLease:
    """One shard's lease. It is live until the lease time after the *sending* of the last renewal that succeeded.

    ``notes`` gives what is to be stored; ``on_lost`` and ``on_expired`` are called at once, also repeatedly.
    """

    def __init__(
        self,
        *,
        token: LeaseToken,
        asked_at: float,
        lease_time: timedelta,
        written: Mapping[str, int | str],
        leases: LeaseStore,
        database: Dependency,
        clock: Clock,
        notes: Callable[[], Mapping[str, int | str]],
        on_lost: Callable[[], None],
        on_expired: Callable[[], None],
    ) -> None:
        self.token = token
        self.written = frozenset(written)
        """The partitions whose notes are stored, as texts."""
        self._lease_time = lease_time
        self._seconds = lease_time.total_seconds()
        self._expires_at = asked_at + self._seconds
        self._leases = leases
        self._database = database
        self._clock = clock
        self._notes = notes
        self._on_lost = on_lost
        self._on_expired = on_expired
        self._turn = asyncio.Lock()
        self._renewed = asyncio.Event()

    @property
    def is_live(self) -> bool:
        """Whether nobody else can have taken it yet, by this process's own clock."""
        return self._clock.monotonic() < self._expires_at

    async def renew(self, unless_written: str | None = None) -> None:
        """Renew, and store the notes unless the wanted one was stored meanwhile. Raises LeaseLost, DatabaseError.

        One renewal at a time: an earlier one that arrived later would take a note away again.
        """
        async with self._turn:
            if unless_written is not None and unless_written in self.written:
                return
            asked_at = self._clock.monotonic()
            notes = self._notes()
            with self._database.watched():
                await database_call(self._leases.renew(self.token, self._lease_time, notes), self._seconds / 3)
            self._database.answered()
            self._expires_at = max(self._expires_at, asked_at + self._seconds)
            self.written = frozenset(notes)
            self._renewed.set()

    async def keep(self) -> None:
        """Renew at a third of the lease time, until cancelled or lost."""
        wait = self._seconds / 3
        while True:
            await self._clock.sleep(wait)
            try:
                await self.renew()
                wait = self._seconds / 3
            except LeaseLost:
                self._on_lost()
                return
            except DatabaseError as error:
                self._database.failed(error)
                wait = self._seconds / 20
            if not self.is_live:
                self._on_expired()

    async def live(self) -> None:
        """Wait until it is live."""
        while not self.is_live:
            self._renewed.clear()
            await self._renewed.wait()

    async def release(self) -> None:
        """Free it for the next owner, cleanly. Raises DatabaseError."""
        async with self._turn:
            await database_call(self._leases.release(self.token, self._notes()), self._seconds / 3)

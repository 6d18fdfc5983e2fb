"""The world of the stores' doubles: everything in memory, faults planned, time virtual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import TypeVar
from uuid import UUID

from outboxd.errors import DatabaseUnreachable
from outboxd.ports import LeaseStore, Notes, OutboxStore, Statement, TargetStore
from outboxd.records import NO_HEADERS, Headers
from outboxd.testing.fakes.clock import FakeClock, SeededRandom
from outboxd.testing.fakes.faults import Fault, Faults, Lost, Raised
from outboxd.testing.fakes.lease import FakeLeases
from outboxd.testing.fakes.letters import FakeLetters
from outboxd.testing.fakes.outbox import FakeOutbox
from outboxd.testing.fakes.targets import FakeTargets
from tests.conformance.store_world import SHARDS, Home, Loss, Moved, Stores, StoreWorld, Writing

__all__ = ["double_stores"]

_T = TypeVar("_T")


class _Faults(Faults):
    """Faults, and one more: an effect that travels on until it is let in."""

    def __init__(self) -> None:
        super().__init__()
        self.belated: str | None = None
        self._travelling: list[Callable[[], object]] = []

    async def around(self, call: str, effect: Callable[[], _T]) -> _T:
        if call != self.belated:
            return await super().around(call, effect)
        self.belated = None
        self._travelling.append(effect)
        raise DatabaseUnreachable("the connection was lost")

    def deliver(self) -> None:
        travelling, self._travelling = self._travelling, []
        for effect in travelling:
            with suppress(Exception):  # nobody waits for it any more
                effect()


class _DoubleWriting:
    def __init__(self, outbox: FakeOutbox) -> None:
        self._outbox = outbox
        self._rows: list[tuple[int, str, bytes | None, bytes | None, Headers]] = []

    async def insert(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS) -> int:
        await asyncio.sleep(0)
        row_id = self._outbox.draw()
        self._rows.append((row_id, topic, key, value, headers))
        return row_id

    async def commit(self) -> None:
        await asyncio.sleep(0)
        rows, self._rows = self._rows, []
        for row in rows:
            self._outbox.commit(*row)

    async def rollback(self) -> None:
        self._rows.clear()


class _DoubleStores:
    def __init__(self) -> None:
        self._faults = _Faults()
        clock = FakeClock()
        self._leases = FakeLeases(clock, self._faults)
        self._outbox = FakeOutbox(self._leases.holds, clock, self._faults, shards=SHARDS)
        self._letters = FakeLetters(clock, SeededRandom(), self._leases, self._faults)
        self.leases: LeaseStore = self._leases
        self.outbox: OutboxStore = self._outbox
        self.letters: Home = self._letters
        self.targets: TargetStore = FakeTargets(self._faults)
        self.other = Stores(leases=self.leases, outbox=self.outbox, letters=self.letters, targets=self.targets)
        self._outbox.refuses = lambda statement: statement.sql == "refused"

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Writing]:
        yield _DoubleWriting(self._outbox)

    async def insert(self, topic: str, key: bytes | None, value: bytes | None, headers: Headers = NO_HEADERS) -> int:
        await asyncio.sleep(0)
        return self._outbox.insert(topic, key, value, headers)

    async def edit(self, row_id: int, value: bytes) -> None:
        self._outbox.edit(row_id, lambda row: replace(row, value=value))

    async def delete(self, row_id: int) -> None:
        self._outbox.remove(row_id)

    def entry(self, line: int) -> Statement:
        return Statement(sql="entry", arguments=[line])

    def refused(self) -> Statement:
        return Statement(sql="refused")

    async def drop(self, letter_id: UUID) -> None:
        self._letters.drop(letter_id)

    async def ledger(self) -> Sequence[int]:
        return sorted(int(str(line)) for statement in self._outbox.statements for line in statement.arguments)

    async def staged(self) -> Sequence[int]:
        return sorted(self._outbox.staged)

    async def notes(self, lease: str) -> Notes:
        return self._leases.notes(lease)

    async def history(self, letter_id: UUID) -> Sequence[Moved]:
        return [
            Moved(before=move.before, after=move.after, actor=move.actor, reason=move.reason)
            for move in self._letters.history
            if move.letter_id == letter_id
        ]

    async def later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @asynccontextmanager
    async def losing(self, loss: Loss, call: str) -> AsyncIterator[None]:
        error = DatabaseUnreachable("the connection was lost")
        with self._planned(call, Lost(error) if loss.is_done else Raised(error)):
            yield

    @asynccontextmanager
    async def belated(self, call: str) -> AsyncIterator[None]:
        self._faults.belated = call
        yield
        assert self._faults.belated is None, f"no {call} to lose"

    async def deliver(self) -> None:
        self._faults.deliver()

    def go_down(self) -> None:
        self._faults.choose = lambda _: Raised(DatabaseUnreachable("the server is away"))

    def come_up(self) -> None:
        self._faults.choose = lambda _: None

    @contextmanager
    def _planned(self, call: str, fault: Fault) -> Iterator[None]:
        before = self._faults.calls.count(call)
        self._faults.plan(call, fault)
        yield
        assert self._faults.calls.count(call) > before, f"no {call} to lose"


@asynccontextmanager
async def double_stores(*, is_registered: bool = False) -> AsyncIterator[StoreWorld]:
    """A fresh world; both replicas have registered their relay when ``is_registered``."""
    world = _DoubleStores()
    if is_registered:
        await world.outbox.register(SHARDS)
    yield world

"""Carries the letters of a topic or a spool home by itself, each exactly once, oldest first (invariant 8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from outboxd.errors import LeaseLost, StatementFailed
from outboxd.ids import drain_lease
from outboxd.pipeline.letters.chain import Chain
from outboxd.pipeline.letters.text import describe
from outboxd.ports import Clock, DrainStore, Lease, LeaseStore, LeaseToken, Notes, Random
from outboxd.records import Letter
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.letters import DrainFailed, LettersDrained

__all__ = ["DrainJob", "DrainPace", "Source", "drain_jobs"]

_T = TypeVar("_T")
_LARGEST_EXPONENT: Final = 16
_POSITION: Final = "position"


class Source(Protocol):
    """A sink to be drained; `GuardedSink` is one."""

    stored: asyncio.Event

    async def read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
        """As `ReadableSink.read`, within a deadline of its own."""
        ...

    async def release(self, position: str) -> None:
        """Everything before ``position`` is home for good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPace:
    """How fast a drain goes: letters per batch and per second, seconds between looks and tries, the lease."""

    batch: int = 100
    per_second: float = 2000.0
    poll: float = 1.0
    unowned_poll: float = 5.0
    retry_first: float = 0.5
    retry_longest: float = 10.0
    call: float = 15.0
    lease: timedelta = timedelta(seconds=20)


@dataclass(slots=True)
class _Journey:
    """What one ownership of the lease knows: how far the home has noted, and whether that is certain."""

    token: LeaseToken
    position: str | None
    renewed_at: float
    is_sure: bool = True
    failures: int = 0
    limit: int = 0
    released: str | None = None
    """Up to where the sink was told to forget: room that it could not free is freed with the next look."""


class DrainJob:
    """One sink of one pipeline, drained by one replica at a time under the lease `drain:<pipeline>:<sink>[:<instance>]`.

    The position stands in the notes of that lease in the home, moved under the lease's epoch in the transaction of the
    inserts: a kill at any point, a second owner or a lost answer makes a batch come again at most, and letters that are
    known already change nothing (invariant 6).
    """

    def __init__(
        self,
        *,
        pipeline: str,
        sink: str,
        source: Source,
        leases: LeaseStore,
        store: DrainStore,
        owner: str,
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        instance: str | None = None,
        pace: DrainPace | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._sink = sink
        self._source = source
        self._leases = leases
        self._store = store
        self._owner = owner
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._pace = DrainPace() if pace is None else pace
        self._lease_name = drain_lease(pipeline, sink, instance)
        self._stopping = asyncio.Event()
        self._is_owner = False
        self._reason: str | None = None
        self._drained = 0

    async def run(self) -> None:
        """Drain until `stop`; an outage of the home or the sink is waited out, never raised.

        Cancelled, it gives its lease back within a second if it can.
        """
        failures = 0
        while not self._stopping.is_set():
            try:
                lease = await self._timed(self._leases.acquire(self._lease_name, self._owner, self._pace.lease))
                failures = 0
                if lease is None:
                    await self._pause(self._pace.unowned_poll)
                else:
                    await self._carry(lease)
            except LeaseLost:
                await self._pause(self._pace.poll)
            except Exception as error:  # noqa: BLE001 - a drain never ends its pipeline; it waits and says why
                failures += 1
                await self._pause(self._failed(error, failures))

    def stop(self) -> None:
        """Ask it to finish the batch in hand and give its lease back. Idempotent."""
        self._stopping.set()
        self._source.stored.set()  # wakes it where it waits for letters

    def status(self) -> Mapping[str, object]:
        """Whether this replica drains, what it has carried, and why it waits."""
        return {"sink": self._sink, "is_owner": self._is_owner, "drained": self._drained, "reason": self._reason}

    async def _carry(self, lease: Lease) -> None:
        position = lease.notes.get(_POSITION)
        journey = _Journey(
            token=lease.token,
            position=None if position is None else str(position),
            renewed_at=self._clock.monotonic(),
            limit=self._pace.batch,
        )
        self._is_owner = True
        try:
            while not self._stopping.is_set():
                await self._step(journey)
        finally:
            self._is_owner = False
            await self._give_back(journey)

    async def _step(self, journey: _Journey) -> None:
        try:
            await self._renew(journey)
            carried = await self._batch(journey)
        except LeaseLost:
            journey.is_sure = False
            raise
        except Exception as error:  # noqa: BLE001 - waited out under the same lease, so that nothing is skipped
            # One letter that the home refuses holds up what is behind it, not what is before it.
            journey.limit = 1 if isinstance(error, StatementFailed) else self._pace.batch
            journey.failures += 1
            await self._pause(self._failed(error, journey.failures))
            return
        journey.failures = 0
        self._reason = None
        await self._look_again(carried)

    async def _batch(self, journey: _Journey) -> int:
        self._source.stored.clear()  # before the read: what is stored from here on wakes the next look
        letters, position = await self._timed(self._source.read(journey.position, journey.limit))
        if not letters and position == journey.position:
            self._report(letters, new=0, foreign=0)
            await self._release(journey)
            return 0
        mine = sorted((letter for letter in letters if letter.pipeline == self._pipeline), key=_age)
        # From here until the answer nobody knows which position the home has.
        journey.is_sure = False
        new = await self._timed(self._store.drain(mine, sink=self._sink, lease=journey.token, position=position))
        journey.is_sure = True
        journey.position = position
        journey.limit = min(self._pace.batch, 2 * journey.limit)
        self._drained += new
        self._report(mine, new=new, foreign=len(letters) - len(mine))
        await self._release(journey)
        return max(1, len(letters))

    async def _release(self, journey: _Journey) -> None:
        if journey.position is not None and journey.released != journey.position:
            await self._timed(self._source.release(journey.position))
            journey.released = journey.position

    async def _renew(self, journey: _Journey) -> None:
        now = self._clock.monotonic()
        if now - journey.renewed_at >= self._pace.lease.total_seconds() / 3:
            await self._timed(self._leases.renew(journey.token, self._pace.lease))
            journey.renewed_at = now

    async def _give_back(self, journey: _Journey) -> None:
        if not journey.is_sure:
            return  # releasing writes the notes: with a position that may be old. The lease runs out by itself.
        notes: Notes = {} if journey.position is None else {_POSITION: journey.position}
        try:
            async with asyncio.timeout(1.0):
                await self._leases.release(journey.token, notes)
        except Exception as error:  # noqa: BLE001 - it runs out by itself
            self._failed(error, 1)

    async def _look_again(self, carried: int) -> None:
        if carried:
            await self._pause(carried / self._pace.per_second)
            return
        try:
            async with asyncio.timeout(self._pace.poll):
                await self._source.stored.wait()
        except TimeoutError:
            return

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _timed(self, call: Awaitable[_T]) -> _T:
        async with asyncio.timeout(self._pace.call):
            return await call

    def _report(self, letters: Sequence[Letter], *, new: int, foreign: int) -> None:
        now = self._clock.now()
        lag = max(((now - letter.last_failed_at).total_seconds() for letter in letters), default=0.0)
        self._telemetry.emit(
            LettersDrained(
                pipeline=self._pipeline,
                sink=self._sink,
                count=len(letters),
                new=new,
                foreign=foreign,
                lag=max(0.0, lag),
            )
        )

    def _failed(self, error: BaseException, failures: int) -> float:
        """Write down why it waits; gives for how many seconds."""
        longest = min(self._pace.retry_longest, self._pace.retry_first * 2.0 ** min(failures - 1, _LARGEST_EXPONENT))
        delay = self._random.uniform(longest / 2, longest)
        self._reason = describe(error)
        self._telemetry.emit(DrainFailed(pipeline=self._pipeline, sink=self._sink, reason=self._reason, retry_in=delay))
        return delay


def drain_jobs(
    chain: Chain,
    *,
    pipeline: str,
    leases: LeaseStore,
    store: DrainStore,
    owner: str,
    instance: str,
    clock: Clock,
    random: Random,
    telemetry: Telemetry,
    pace: DrainPace | None = None,
) -> Sequence[DrainJob]:
    """A job for each sink of the chain that can be read, unless its `drain` is off; none for a chain without a home.

    ``leases`` and ``store`` are those of the home's database; ``instance`` is this replica's stable name, under which
    it drains what only it has (a spool).
    """
    home = chain.home
    if home is None:
        return ()
    return [
        DrainJob(
            pipeline=pipeline,
            sink=sink.name,
            source=sink,
            leases=leases,
            store=store,
            owner=owner,
            clock=clock,
            random=random,
            telemetry=telemetry,
            instance=instance if sink.is_local else None,
            pace=pace,
        )
        for sink in chain.sinks
        if sink is not home and sink.is_readable and sink.link.is_drained
    ]


def _age(letter: Letter) -> tuple[float, str, int, int]:
    return letter.last_failed_at.timestamp(), letter.topic, letter.partition, letter.offset

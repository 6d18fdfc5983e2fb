"""Runs claimed letters again where they failed: one claim per letter, its outcome written down, its key's order kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from outboxd.errors import AssignmentLost, LetterUnknown, MoveRefused, OutboxdError
from outboxd.pipeline.letters.text import describe
from outboxd.ports import Clock, LetterStore, Random, ReplayItem
from outboxd.records import TopicPartition
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.letters import ReplayClaimFailed, ReplayFinished, ReplayReturned

__all__ = ["ReplayPace", "ReplayPostponed", "Replayer"]

_T = TypeVar("_T")
_LARGEST_EXPONENT: Final = 16
_LAST_TRIES: Final = 3


class ReplayPostponed(OutboxdError):
    """The letter was not run, or its run does not count: an outage, a pause, a partition that moved on."""

    code = "replay_postponed"
    retriable = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPace:
    """Letters in hand at once; seconds between looks, heartbeats and tries, after a postponed run, and for one call."""

    concurrency: int = 16
    poll: float = 1.0
    heartbeat: float = 15.0
    retry_first: float = 0.5
    retry_longest: float = 10.0
    postponed: float = 5.0
    call: float = 15.0


class Replayer:
    """Claims letters of the partitions that this replica owns and hands each to ``replay``, which runs the handler.

    ``replay`` returns when the letter's record was handled and raises the handler's error when it failed again;
    ReplayPostponed or AssignmentLost mean that the run does not count: the claim is given back. Letters of one key are
    run one after another, in the order of their claims (invariant 9).
    """

    def __init__(
        self,
        *,
        pipeline: str,
        group: str,
        store: LetterStore,
        owner: str,
        partitions: Callable[[], Collection[TopicPartition]],
        replay: Callable[[ReplayItem], Awaitable[None]],
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        mask: Callable[[str], str] = str,
        pace: ReplayPace | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._group = group
        self._store = store
        self._owner = owner
        self._partitions = partitions
        self._replay = replay
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._mask = mask
        self._pace = ReplayPace() if pace is None else pace
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._running: dict[asyncio.Task[bool], str] = {}
        self._tails: dict[Hashable, asyncio.Task[bool]] = {}
        self._lost_claims = 0
        self._postponed_until = 0.0

    @property
    def in_hand(self) -> int:
        """Letters that are claimed and not finished."""
        return len(self._running)

    async def run(self) -> None:
        """Replay until `stop`, then finish what is in hand; an outage of the home is waited out, never raised.

        Cancelled, it cancels what is in hand and gives the claims back within a second if it can.
        """
        failures = 0
        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._beat(), name=f"replay heartbeat {self._pipeline}")
                while not self._stopping.is_set():
                    try:
                        claimed = await self._claim()
                    except Exception as error:  # noqa: BLE001 - replays wait for the home; records do not
                        failures += 1
                        self._lost_claims += 1
                        await self._wait(self._stopping, self._failed(error, failures))
                        continue
                    failures = 0
                    self._start(claimed)
                    await self._wait(self._woken, 0.0 if claimed and self._room else self._pace.poll)
                    self._woken.clear()
                if self._running:
                    await asyncio.wait(set(self._running))
                beating.cancel()
        finally:
            await self._cancel_all()

    def stop(self) -> None:
        """Claim nothing more. Idempotent."""
        self._stopping.set()
        self._woken.set()

    @property
    def _room(self) -> int:
        return self._pace.concurrency - len(self._running)

    @property
    def _claimant(self) -> str:
        # A claim whose answer was lost may stand. Under a name that is heard no more it is given back in time.
        return self._owner if not self._lost_claims else f"{self._owner}/{self._lost_claims}"

    async def _claim(self) -> Sequence[ReplayItem]:
        partitions = self._partitions()
        if not partitions or self._room <= 0 or self._clock.monotonic() < self._postponed_until:
            return ()
        claim = self._store.claim(
            pipeline=self._pipeline, group=self._group, partitions=partitions, owner=self._claimant, limit=self._room
        )
        return await self._timed(claim)

    def _start(self, items: Sequence[ReplayItem]) -> None:
        for item in items:
            letter = item.letter
            lane: Hashable = item if letter.key is None else (letter.topic, letter.partition, letter.key)
            before = self._tails.get(lane)
            task = asyncio.create_task(self._process(item, before), name=f"replay {letter.id}")
            self._tails[lane] = task
            self._running[task] = self._claimant
            task.add_done_callback(partial(self._ended, lane))

    def _ended(self, lane: Hashable, task: asyncio.Task[bool]) -> None:
        self._running.pop(task, None)
        if self._tails.get(lane) is task:
            del self._tails[lane]
        self._woken.set()

    async def _process(self, item: ReplayItem, before: asyncio.Task[bool] | None) -> bool:
        """True when the letter came to an outcome; one that was given back takes those behind it in its key along."""
        try:
            if before is not None:
                await asyncio.wait({before})
                if not _has_outcome(before):
                    raise ReplayPostponed("the letter before it in its key was given back")
            error = await self._outcome(item)
        except (ReplayPostponed, AssignmentLost) as postponed:
            self._postponed_until = self._clock.monotonic() + self._pace.postponed
            await self._give_back(item, describe(postponed))
            return False
        except asyncio.CancelledError:
            await self._give_back(item, "this replica stops")
            raise
        await self._finish(item, error)
        return True

    async def _outcome(self, item: ReplayItem) -> str | None:
        letter = item.letter
        if (letter.pipeline, letter.group) != (self._pipeline, self._group):
            raise ReplayPostponed(f"the letter belongs to group {letter.group} of pipeline {letter.pipeline}")
        try:
            await self._replay(item)
        except (ReplayPostponed, AssignmentLost):
            raise
        except Exception as error:  # noqa: BLE001 - whatever the handler raises is the outcome
            return self._mask(describe(error))
        return None

    async def _finish(self, item: ReplayItem, error: str | None) -> None:
        """Tell the home until it knows: a forgotten success would run the handler again."""
        failures = 0
        while True:
            try:
                await self._timed(self._store.finish(item, resolved=error is None, error=error))
                break
            except (LetterUnknown, MoveRefused) as moved:
                # The claim was given back while the home was away, or a person moved the letter: theirs counts.
                self._returned(item, describe(moved))
                return
            except Exception as failed:  # noqa: BLE001 - the home is away
                failures += 1
                delay = self._failed(failed, failures)
                if self._stopping.is_set() and failures >= _LAST_TRIES:
                    self._returned(item, "the home cannot be told of the outcome; the claim runs out by itself")
                    return
                await self._clock.sleep(delay)
        self._telemetry.emit(
            ReplayFinished(
                pipeline=self._pipeline,
                job_id=item.job_id,
                letter_id=item.letter.id,
                attempt=item.attempt,
                error=error,
            )
        )

    async def _give_back(self, item: ReplayItem, reason: str) -> None:
        try:
            async with asyncio.timeout(1.0):
                await self._store.give_back(item)
        except Exception as error:  # noqa: BLE001 - the claim runs out by itself
            self._lost_claims += 1  # ... once nobody speaks under its name any more
            reason = f"{reason}; giving the claim back failed: {describe(error)}"
        self._returned(item, reason)

    async def _beat(self) -> None:
        failures = 0
        while True:
            delay = self._pace.heartbeat
            try:
                for claimant in {self._claimant, *self._running.values()}:
                    await self._timed(self._store.heartbeat(claimant))
                failures = 0
            except Exception as error:  # noqa: BLE001 - claims are kept for longer than a few beats
                failures += 1
                delay = self._failed(error, failures)
            await self._clock.sleep(delay)

    async def _cancel_all(self) -> None:
        for task in tuple(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(set(self._running), timeout=2.0)

    async def _wait(self, event: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return

    async def _timed(self, call: Awaitable[_T]) -> _T:
        async with asyncio.timeout(self._pace.call):
            return await call

    def _returned(self, item: ReplayItem, reason: str) -> None:
        self._telemetry.emit(
            ReplayReturned(pipeline=self._pipeline, job_id=item.job_id, letter_id=item.letter.id, reason=reason)
        )

    def _failed(self, error: BaseException, failures: int) -> float:
        longest = min(self._pace.retry_longest, self._pace.retry_first * 2.0 ** min(failures - 1, _LARGEST_EXPONENT))
        delay = self._random.uniform(longest / 2, longest)
        self._telemetry.emit(ReplayClaimFailed(pipeline=self._pipeline, reason=describe(error), retry_in=delay))
        return delay


def _has_outcome(task: asyncio.Task[bool]) -> bool:
    return not task.cancelled() and task.exception() is None and task.result()

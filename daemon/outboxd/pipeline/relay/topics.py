"""The topics of one relay: what is known of each, and which are paused, since when and why.

A topic is looked up in a task of its own, never on the way of a row: an unknown one may take its client's whole
deadline. Until it is known its rows stay in the table. A paused one is looked up again when its wait is over and there
still is a row for it; one whose rows are gone holds nobody up, and is forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Final

from outboxd.errors import BrokerError, BrokerUnreachable, OutboxdError, TopicError
from outboxd.pipeline.relay.dependencies import Dependency, growing_wait, told
from outboxd.pipeline.relay.rows import is_listed
from outboxd.ports import Admin, Clock, TopicInfo
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.relay import TopicPaused, TopicResumed

__all__ = ["PausedTopic", "Topic", "Topics"]

_LOOK_UP_DEADLINE: Final = 10.0
_LOOK_UPS_AT_ONCE: Final = 8
_REFRESH: Final = 60.0
_CACHED_KEYS: Final = 50_000


class PausedTopic:
    """Why and since when a topic is paused, and from when on it may be looked at again."""

    __slots__ = ("at", "attempts", "due_at", "error")

    def __init__(self, error: str, at: datetime, attempts: int, due_at: float) -> None:
        self.error = error
        self.at = at
        self.attempts = attempts
        self.due_at = due_at


class Topic:
    """A topic that is known: its settings and its keys' partitions so far."""

    __slots__ = ("fresh_until", "has_actions", "info", "partitions")

    def __init__(self, info: TopicInfo, *, has_actions: bool, fresh_until: float) -> None:
        self.info = info
        self.has_actions = has_actions
        self.fresh_until = fresh_until
        self.partitions: dict[bytes, int] = {}

    def remember(self, key: bytes, partition: int) -> None:
        """Keep a key's partition: the hash is the dearest thing that is done for a row."""
        if len(self.partitions) >= _CACHED_KEYS:
            self.partitions.clear()
        self.partitions[key] = partition


class Topics:
    """Looks topics up, pauses those that fail, and looks again with growing waits.

    ``on_pause`` and ``on_resume`` are told at once; ``is_busy`` says whether a batch for the topic is on its way.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        admin: Admin,
        clock: Clock,
        telemetry: Telemetry,
        broker: Dependency,
        listed: Collection[str],
        with_actions: Collection[str],
    ) -> None:
        self.on_pause: Callable[[str], None] = lambda _: None
        self.on_resume: Callable[[str], None] = lambda _: None
        self.is_busy: Callable[[str], bool] = lambda _: False
        self._pipeline = pipeline
        self._admin = admin
        self._clock = clock
        self._telemetry = telemetry
        self._broker = broker
        self._listed = listed
        self._with_actions = with_actions
        self._known: dict[str, Topic] = {}
        self._wanted: set[str] = set()
        self._paused: dict[str, PausedTopic] = {}
        self._attempts: dict[str, int] = {}
        self._wake = asyncio.Event()

    def is_listed(self, name: str) -> bool:
        """Whether the configuration lets rows for this topic out."""
        return is_listed(name, self._listed)

    def ready(self, name: str) -> Topic | None:
        """The topic when rows may be sent to it now; a topic that nobody asked for before is looked up."""
        topic = self._known.get(name)
        if topic is None and name not in self._wanted and not self._is_waiting(name):
            self._wanted.add(name)
            self._wake.set()
        return topic

    @property
    def skipped(self) -> Collection[str]:
        """Topics whose rows stay in the table for now."""
        if not self._wanted and not self._paused:
            return ()
        return self._wanted | {name for name in self._paused if self._is_waiting(name)}

    @property
    def due(self) -> Collection[str]:
        """Paused topics whose wait is over: the next row for one of them has it looked up again."""
        return self._paused.keys() - self.skipped if self._paused else ()

    def vanished(self, names: Collection[str]) -> None:
        """No row is pending for these, which were due: what is wrong with them concerns nobody any more."""
        for name in names:
            if name in self._paused and name not in self._wanted and not self._is_waiting(name):
                del self._paused[name]
                self._attempts.pop(name, None)
                self._telemetry.emit(TopicResumed(pipeline=self._pipeline, topic=name))

    def _is_waiting(self, name: str) -> bool:
        paused = self._paused.get(name)
        return paused is not None and paused.due_at > self._clock.monotonic()

    @property
    def paused(self) -> Mapping[str, PausedTopic]:
        """The paused topics."""
        return self._paused

    def pause(self, name: str, error: OutboxdError) -> None:
        """Send nothing to the topic until it was looked at again; others go on. Failures during one wait count once."""
        before = self._paused.get(name)
        if before is None or not self._is_waiting(name):
            attempts = self._attempts[name] = self._attempts.get(name, 0) + 1
            wait = growing_wait(attempts, initial=1.0, maximum=60.0)
            since = self._clock.now() if before is None else before.at
            self._paused[name] = PausedTopic(told(error), since, attempts, self._clock.monotonic() + wait)
            if before is None:
                self._telemetry.emit(TopicPaused(pipeline=self._pipeline, topic=name, error=str(error), retry_in=wait))
        self._known.pop(name, None)
        self._wanted.discard(name)
        self.on_pause(name)
        self._wake.set()

    def acknowledged(self, name: str) -> None:
        """A batch got through: the next failure is a first one again."""
        if self._attempts:
            self._attempts.pop(name, None)

    async def run(self) -> None:
        """Look up what is wanted or stale, until cancelled."""
        gate = asyncio.Semaphore(_LOOK_UPS_AT_ONCE)
        running: set[str] = set()

        async def one(name: str) -> None:
            async with gate:
                try:
                    await self._look_up(name)
                finally:
                    running.discard(name)
                    self._wake.set()

        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                for name in sorted(self._due() - running):
                    running.add(name)
                    group.create_task(one(name), name=f"{self._pipeline}: look up {name}")
                try:
                    async with asyncio.timeout(self._until_next()):
                        await self._wake.wait()
                except TimeoutError:
                    continue

    def _due(self) -> set[str]:
        now = self._clock.monotonic()
        due = set(self._wanted)
        due.update(name for name, topic in self._known.items() if topic.fresh_until <= now)
        return due

    def _until_next(self) -> float:
        now = self._clock.monotonic()
        return max(0.05, min((topic.fresh_until for topic in self._known.values()), default=now + _REFRESH) - now)

    async def _look_up(self, name: str) -> None:
        await self._broker.wait()
        try:
            async with asyncio.timeout(_LOOK_UP_DEADLINE):
                info = await self._admin.topic(name)
        except TopicError as error:
            self.pause(name, error)
        except (TimeoutError, BrokerError) as error:
            # An outage says nothing of the topic: what is known of it stays, the wait is the broker's.
            outage = error if isinstance(error, BrokerError) else BrokerUnreachable(f"no answer about the topic {name}")
            self._broker.failed(outage)
        else:
            await self._learned(name, info)

    async def _learned(self, name: str, info: TopicInfo) -> None:
        topic = self._known.get(name)
        if topic is not None and topic.info.partitions != info.partitions:
            # Keys move to other partitions now. What is on its way must land first, or a key's later record could
            # overtake an earlier one in another partition.
            del self._known[name]
            self._wanted.add(name)
            self.on_pause(name)
            while self.is_busy(name):
                await self._clock.sleep(0.02)
        fresh_until = self._clock.monotonic() + _REFRESH
        if topic is not None and topic.info == info:
            topic.fresh_until = fresh_until
            return
        was_paused = self._paused.pop(name, None)
        self._wanted.discard(name)
        self._known[name] = Topic(info, has_actions=name in self._with_actions, fresh_until=fresh_until)
        if was_paused is not None:
            self._telemetry.emit(TopicResumed(pipeline=self._pipeline, topic=name))
        self.on_resume(name)

"""The client's side of a group: joins, hears of rebalances by its heartbeat, gives partitions up and takes new ones.

Two tasks of the client, as in the real one: one joins and calls the listener, the other keeps the session meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeVar

from outboxd.errors import AssignmentLost, BrokerDenied, BrokerError, BrokerUnreachable, TopicUnknown
from outboxd.ports import AssignmentListener
from outboxd.records import TopicPartition
from outboxd.testing.fakes.kafka.bell import Bell
from outboxd.testing.fakes.kafka.connection import ANSWER_DEADLINE, CLOSE_DEADLINE, REQUEST_TIMEOUT, Connection
from outboxd.testing.fakes.kafka.requests import Assigned, Disconnected, GroupRefusal, Joined, Parked, Why

__all__ = ["GroupOptions", "Membership"]

_T = TypeVar("_T")

_BACKOFF: Final = 0.1
_AWAY: Final = 1.0
_TOUCH_EVERY: Final = 1.0
_METADATA_AGE: Final = 30.0
_UNCHANGED: Final = (Disconnected, BrokerUnreachable, TimeoutError)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How a member takes part in its group; times in seconds."""

    topics: Sequence[str]
    group: str
    session_timeout: float
    rebalance_timeout: float
    instance_id: str | None

    @property
    def heartbeat_interval(self) -> float:
        """A tenth of the session."""
        return self.session_timeout / 10


class Membership:
    """One member from `start` to `stop`. ``taken`` is called with the partitions of each new assignment."""

    def __init__(
        self, connection: Connection, options: GroupOptions, taken: Callable[[Collection[TopicPartition]], None]
    ) -> None:
        self._connection = connection
        self._options = options
        self._taken = taken
        self._listener: AssignmentListener | None = None
        self.member_id = ""
        self.generation = -1
        self.epoch = 0
        """Grows with each revocation and each assignment."""
        self.owned: frozenset[TopicPartition] = frozenset()
        self.sought: set[TopicPartition] = set()
        """Owned partitions that were given a position in this assignment."""
        self.is_reassigning = True
        """Whether polls have to wait for the next assignment."""
        self.settled = Bell()
        """Rings with each new assignment."""
        self._is_closing = False
        self._needs_rejoin = True
        self._has_given_up = False
        self._news = Bell()
        self._watched: Mapping[str, int] | None = None
        """The leader watches these topics' numbers of partitions."""
        self._main: asyncio.Task[None] | None = None
        self._heart: asyncio.Task[None] | None = None

    def start(self, listener: AssignmentListener) -> None:
        """Begin to join."""
        self._listener = listener
        self._main = asyncio.create_task(self._run(), name=f"kafka: member of {self._options.group}")

    async def stop(self) -> None:
        """Leave within the close deadline (a static member stays), leaving no task behind."""
        self._is_closing = True
        self._news.ring()
        try:
            async with asyncio.timeout(CLOSE_DEADLINE):
                if self._main is not None:
                    await asyncio.wait((self._main,))
                await self._end(self._heart)
                await self._leave()
        except TimeoutError:
            pass
        finally:
            self.halt()
            for task in (self._main, self._heart):
                await self._end(task)
            self.owned = frozenset()
            self.settled.ring()

    def halt(self) -> None:
        """End its tasks where they stand."""
        self._is_closing = True
        for task in (self._main, self._heart):
            if task is not None:
                task.cancel()

    @staticmethod
    async def _end(task: asyncio.Task[None] | None) -> None:
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    # -- joining

    async def _run(self) -> None:
        while not self._is_closing:
            count = self._news.count
            if self._needs_rejoin:
                if not self._has_given_up:
                    await self._give_up()
                    self._has_given_up = True
                await self._end(self._heart)
                arrivals = self._connection.brokers.arrivals.count
                if not await self._has_joined():
                    await self._back_off(arrivals)
                    continue
                self._has_given_up = False
                self._heart = asyncio.create_task(self._beat(), name=f"kafka: heartbeat of {self.member_id}")
            if self._watched is None:
                await self._news.wait(count)
            else:
                await self._news.wait(count, _METADATA_AGE)
                await self._look_at_topics()

    async def _give_up(self) -> None:
        """Everything is revoked, also when there was nothing. Heartbeats go on until the listener is done."""
        self.is_reassigning = True
        self.epoch += 1
        assert self._listener is not None
        try:
            await self._tell(self._listener.revoked, self.owned)
        finally:
            self.owned = frozenset()
            self.sought.clear()

    async def _has_joined(self) -> bool:
        """Join and sync once; False when that is to be tried again."""
        try:
            joined = await self._joined()
            if joined is None:
                return False
            self.member_id, self.generation = joined.member_id, joined.generation
            self._needs_rejoin = False
            self._watched = await self._counts(joined.topics) if joined.is_leader else None
            assigned = await self._parked("sync_group", self._sync)
        except GroupRefusal as refusal:
            await self._refused(refusal.why)
            return False
        except _UNCHANGED:
            assigned = None
        if assigned is None:
            self._needs_rejoin = True
            return False
        await self._take(assigned)
        return True

    async def _back_off(self, arrivals: int) -> None:
        brokers = self._connection.brokers
        if brokers.is_down:
            await brokers.arrivals.wait(arrivals, _AWAY)
        else:
            await asyncio.sleep(_BACKOFF)

    async def _joined(self) -> Joined | None:
        try:
            return await self._parked("join_group", self._join)
        except GroupRefusal as refusal:
            if refusal.why is not Why.MEMBER_ID_REQUIRED:
                raise
            self.member_id = refusal.member_id
        return await self._parked("join_group", self._join)

    def _join(self) -> Callable[[], Parked[Joined]]:
        options, member_id = self._options, self.member_id
        group = self._connection.brokers.coordinator.group
        return lambda: group(options.group).join(
            member_id, options.instance_id, options.session_timeout, options.rebalance_timeout, options.topics
        )

    def _sync(self) -> Callable[[], Parked[Assigned]]:
        name, member_id, generation = self._options.group, self.member_id, self.generation
        return lambda: self._connection.brokers.coordinator.group(name).sync(member_id, generation)

    async def _parked(self, call: str, request: Callable[[], Callable[[], Parked[_T]]]) -> _T | None:
        """Make a request that is answered later; None when it was not within the request timeout."""
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                parked = await self._connection.once(call, request())
                await parked.wait()
                return await self._connection.once(f"{call}_answer", parked.collect)
        except TimeoutError:
            return None

    async def _refused(self, why: Why) -> None:
        match why:
            case Why.UNKNOWN_MEMBER | Why.ILLEGAL_GENERATION:
                self._reset()
            case Why.INVALID_SESSION_TIMEOUT:
                await self._tell_refusal(BrokerError("could not join the group: InvalidSessionTimeoutError"))
            case Why.DENIED:
                await self._tell_refusal(BrokerDenied("could not join the group: GroupAuthorizationFailedError"))
            case _:
                self._needs_rejoin = True

    async def _tell_refusal(self, error: BrokerError) -> None:
        await asyncio.sleep(_TOUCH_EVERY)
        if self._listener is not None:
            self._listener.refused(error)

    async def _take(self, assigned: Assigned) -> None:
        self.epoch += 1
        self.owned = frozenset(assigned)
        self.sought.clear()
        self._taken(assigned)
        self.is_reassigning = False
        self.settled.ring()
        assert self._listener is not None
        await self._tell(self._listener.assigned, assigned)

    async def _tell(
        self, callback: Callable[[Collection[TopicPartition]], Awaitable[None]], partitions: Collection[TopicPartition]
    ) -> None:
        with suppress(Exception):  # what a listener raises is swallowed, as by the real client
            await callback(sorted(partitions))

    # -- staying

    async def _beat(self) -> None:
        """Keep the session, and hear of rebalances."""
        pause = self._options.heartbeat_interval
        while self.member_id:
            await asyncio.sleep(pause)
            pause = self._options.heartbeat_interval
            try:
                await self._connection.ask("heartbeat", self._heartbeat(), seconds=REQUEST_TIMEOUT)
            except GroupRefusal as refusal:
                self.heed(refusal.why)
            except BrokerError:
                pause = _BACKOFF

    def _heartbeat(self) -> Callable[[], None]:
        name, member_id, generation = self._options.group, self.member_id, self.generation
        groups = self._connection.brokers.coordinator
        return lambda: groups.group(name).heartbeat(member_id, generation)

    def heed(self, why: Why) -> None:
        """Whatever the coordinator refused, it means to join again; as somebody new when it knows us no more."""
        if why is Why.REBALANCE_IN_PROGRESS:
            self._needs_rejoin = True
            self._news.ring()
        else:
            self._reset()

    def _reset(self) -> None:
        self.member_id, self.generation = "", -1
        self._needs_rejoin = True
        self._news.ring()

    async def _look_at_topics(self) -> None:
        if self._needs_rejoin or self._is_closing or self._watched is None:
            return
        with suppress(*_UNCHANGED):
            if await self._counts(list(self._watched)) != self._watched:
                self._needs_rejoin = True

    async def _counts(self, topics: Sequence[str]) -> Mapping[str, int]:
        brokers = self._connection.brokers
        return await self._connection.ask(
            "metadata", lambda: {topic: len(brokers.partitions_of(topic)) for topic in topics}
        )

    async def _leave(self) -> None:
        if self.generation < 0 or self._options.instance_id is not None:
            return
        name, member_id = self._options.group, self.member_id
        groups = self._connection.brokers.coordinator
        with suppress(BrokerError):
            await self._connection.once("leave_group", lambda: groups.group(name).leave(member_id))

    # -- committing

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit. Raises AssignmentLost, BrokerUnreachable, BrokerError.

        Each attempt goes under the generation of its moment, also one that is made again after a rebalance.
        """
        name, brokers = self._options.group, self._connection.brokers

        async def attempt() -> None:
            member_id, generation = self.member_id, self.generation
            missing = await self._connection.once(
                "commit", lambda: brokers.coordinator.commit(name, member_id, generation, offsets)
            )
            if missing:
                raise TopicUnknown(f"{missing[0]} does not exist", topic=missing[0].topic)

        try:
            await self._connection.persist(
                attempt, seconds=ANSWER_DEADLINE, doing="commit offsets", passing=(Disconnected, TopicUnknown)
            )
        except GroupRefusal as refusal:
            self.heed(refusal.why)
            raise AssignmentLost(f"the group has rebalanced: {refusal.message}") from refusal

    async def committed(self, partition: TopicPartition) -> tuple[int, str] | None:
        """The group's committed offset."""
        key, brokers = (self._options.group, partition), self._connection.brokers
        return await self._connection.ask("committed", lambda: brokers.coordinator.committed.get(key))

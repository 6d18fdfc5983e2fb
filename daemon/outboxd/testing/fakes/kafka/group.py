"""A consumer group as its broker keeps it: members, generations, sessions.

Rebalances are eager (the classic protocol): whoever is to stay joins again and gets its partitions anew. The broker waits
for a member up to the group's longest rebalance timeout, then goes on without it, whatever that member still works on.
Timers run in the broker's own context.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from outboxd.records import TopicPartition
from outboxd.testing.fakes.kafka.bell import Bell
from outboxd.testing.fakes.kafka.dealing import deal
from outboxd.testing.fakes.kafka.requests import Assigned, GroupRefusal, Joined, Parked, Why

__all__ = ["Group", "GroupState", "Host", "Member"]


class GroupState(Enum):
    """Where a group stands."""

    EMPTY = auto()
    PREPARING = auto()
    """Waits for its members to join again."""
    COMPLETING = auto()
    """Waits for the leader's assignment."""
    STABLE = auto()


@dataclass(slots=True, eq=False)
class Member:
    """A member as the broker knows it; times in seconds."""

    id: str
    instance_id: str | None
    session_timeout: float
    rebalance_timeout: float
    topics: Sequence[str]
    until: float = 0.0
    """When its session is over, unless it is heard of before."""
    timer: asyncio.TimerHandle | None = None
    joining: Parked[Joined] | None = None
    syncing: Parked[Assigned] | None = None
    assignment: Assigned = ()


class Host(Protocol):
    """What a group needs of the broker that it runs on."""

    shortest_session: float
    """Seconds; a member that asks for a shorter session is refused."""

    @property
    def is_down(self) -> bool:
        """Whether the broker is away; sessions do not end then."""
        ...

    def partitions_of(self, topic: str) -> Sequence[TopicPartition]:
        """The topic's partitions; none when there is no such topic."""
        ...

    def call_later(self, seconds: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        """A timer in the broker's context."""
        ...


class Group:
    """One group."""

    def __init__(self, host: Host, name: str) -> None:
        self._host = host
        self.name = name
        self.state = GroupState.EMPTY
        self.generation = 0
        self.members: dict[str, Member] = {}
        self.is_denied = False
        self.settled = Bell()
        """Rings when the group has become stable or empty."""
        self._leader: str | None = None
        self._pending: dict[str, asyncio.TimerHandle] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ids = 0

    # -- requests

    def join(
        self,
        member_id: str,
        instance_id: str | None,
        session_timeout: float,
        rebalance_timeout: float,
        topics: Sequence[str],
    ) -> Parked[Joined]:
        """Join, for the first time or again. Raises GroupRefusal."""
        if self.is_denied:
            raise GroupRefusal(Why.DENIED)
        if session_timeout < self._host.shortest_session:
            raise GroupRefusal(Why.INVALID_SESSION_TIMEOUT)
        if not member_id and instance_id is None:
            member_id = self._new_id()
            self._pending[member_id] = self._host.call_later(session_timeout, self._forget_pending, member_id)
            raise GroupRefusal(Why.MEMBER_ID_REQUIRED, member_id)
        if not member_id:
            for member in self.members.values():
                if member.instance_id == instance_id:
                    return self._replace(member, topics)
            member_id = self._new_id()
        elif member_id in self._pending:
            self._pending.pop(member_id).cancel()
        else:
            member = self._member(member_id)
            member.rebalance_timeout = rebalance_timeout
            return self._join_again(member, topics)
        member = Member(member_id, instance_id, session_timeout, rebalance_timeout, topics)
        self.members[member_id] = member
        self._renew(member)
        return self._park(member)

    def sync(self, member_id: str, generation: int) -> Parked[Assigned]:
        """Ask for the assignment; the leader's request makes it. Raises GroupRefusal."""
        member = self._member(member_id, generation)
        self._renew(member)
        match self.state:
            case GroupState.STABLE:
                return Parked(member.assignment)
            case GroupState.COMPLETING:
                parked = member.syncing = Parked()
                if member_id == self._leader:
                    self._assign()
                return parked
            case _:
                raise GroupRefusal(Why.REBALANCE_IN_PROGRESS)

    def heartbeat(self, member_id: str, generation: int) -> None:
        """Keep the session. Raises GroupRefusal, which tells of a rebalance too."""
        self._renew(self._member(member_id, generation))
        if self.state is GroupState.PREPARING:
            raise GroupRefusal(Why.REBALANCE_IN_PROGRESS)

    def leave(self, member_id: str) -> None:
        """Go. Raises GroupRefusal."""
        self._remove(self._member(member_id))

    def check_commit(self, member_id: str, generation: int) -> None:
        """Whether this member may commit; in an empty group anybody may who names no generation. Raises GroupRefusal."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return
        self._renew(self._member(member_id, generation))
        if self.state is GroupState.COMPLETING:
            raise GroupRefusal(Why.REBALANCE_IN_PROGRESS)

    # -- what a test does to it

    async def rebalance(self) -> None:
        """Make every member join again; returns when the group has settled."""
        if self.members and self.state is not GroupState.PREPARING:
            self._prepare()
        while self.state not in {GroupState.STABLE, GroupState.EMPTY}:
            await self.settled.wait(self.settled.count)

    def expire(self, member_id: str) -> None:
        """End the session of a member now, as if its time had run out; nothing when there is no such member."""
        member = self.members.get(member_id)
        if member is not None:
            self._remove(member)

    def renew_all(self) -> None:
        """The broker was started again: every session begins anew."""
        for member in self.members.values():
            self._renew(member)

    # -- the state machine

    def _join_again(self, member: Member, topics: Sequence[str]) -> Parked[Joined]:
        is_changed = member.topics != topics
        member.topics = topics
        self._renew(member)
        match self.state:
            case GroupState.COMPLETING if not is_changed:
                return Parked(self._joined(member))
            case GroupState.STABLE if not is_changed and member.id != self._leader:
                return Parked(self._joined(member))
            case _:
                return self._park(member)

    def _replace(self, member: Member, topics: Sequence[str]) -> Parked[Joined]:
        """A static member comes back under a new member id; whoever held the old one is unknown from now on."""
        del self.members[member.id]
        for parked in (member.joining, member.syncing):
            if parked is not None:
                parked.refuse(Why.UNKNOWN_MEMBER)
        member.joining = member.syncing = None
        was_leader = member.id == self._leader
        member.id = self._new_id()
        self.members[member.id] = member
        if was_leader:
            self._leader = member.id
        is_changed = member.topics != topics
        member.topics = topics
        self._renew(member)
        if self.state is GroupState.STABLE and not is_changed:
            # Not as the leader: the assignment stands, nothing is to be dealt.
            return Parked(
                Joined(generation=self.generation, member_id=member.id, is_leader=False, topics=self._topics())
            )
        return self._park(member)

    def _park(self, member: Member) -> Parked[Joined]:
        parked = member.joining = Parked()
        if self.state is not GroupState.PREPARING:
            self._prepare()
        else:
            self._complete_when_all_are_there()
        return parked

    def _prepare(self) -> None:
        for member in self.members.values():
            if member.syncing is not None:
                member.syncing.refuse(Why.REBALANCE_IN_PROGRESS)
                member.syncing = None
        was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING
        longest = max((member.rebalance_timeout for member in self.members.values()), default=0.0)
        self._set_timer(longest, self._complete)
        if was_empty:
            self._complete()  # `group.initial.rebalance.delay.ms` is 0: nobody is waited for
        else:
            self._complete_when_all_are_there()

    def _complete_when_all_are_there(self) -> None:
        if not self._pending and all(member.joining is not None for member in self.members.values()):
            self._complete()

    def _complete(self) -> None:
        """Begin the next generation with those who have joined."""
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._forget(member)
        present = [member for member in self.members.values() if member.joining is not None]
        if self.members and not present:  # static members that are away keep their places until their sessions end
            self._set_timer(max(member.rebalance_timeout for member in self.members.values()), self._complete)
            return
        self.generation += 1
        if not present:
            self.state = GroupState.EMPTY
            self._leader = None
            self._set_timer(None)
            self.settled.ring()
            return
        if self._leader not in [member.id for member in present]:
            self._leader = present[0].id
        self.state = GroupState.COMPLETING
        for member in present:
            assert member.joining is not None
            member.joining.resolve(self._joined(member))
            member.joining = None
            self._renew(member)
        self._set_timer(max(member.rebalance_timeout for member in present), self._drop_unsynced)

    def _assign(self) -> None:
        dealt = deal(
            {member.id: member.topics for member in self.members.values()},
            [partition for topic in self._topics() for partition in self._host.partitions_of(topic)],
        )
        self.state = GroupState.STABLE
        self._set_timer(None)
        for member in self.members.values():
            member.assignment = tuple(dealt[member.id])
            if member.syncing is not None:
                member.syncing.resolve(member.assignment)
                member.syncing = None
        self.settled.ring()

    def _drop_unsynced(self) -> None:
        """A member joined and never asked for its assignment."""
        for member in list(self.members.values()):
            if member.syncing is None:
                self._forget(member)
        self._prepare()

    def _remove(self, member: Member) -> None:
        self._forget(member)
        if self.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare()
        elif self.state is GroupState.PREPARING:
            self._complete_when_all_are_there()

    def _forget(self, member: Member) -> None:
        del self.members[member.id]
        if member.timer is not None:
            member.timer.cancel()
        for parked in (member.joining, member.syncing):
            if parked is not None:
                parked.refuse(Why.UNKNOWN_MEMBER)

    def _forget_pending(self, member_id: str) -> None:
        if self._pending.pop(member_id, None) is not None and self.state is GroupState.PREPARING:
            self._complete_when_all_are_there()

    # -- small things

    def _member(self, member_id: str, generation: int | None = None) -> Member:
        member = self.members.get(member_id)
        if member is None:
            raise GroupRefusal(Why.UNKNOWN_MEMBER)
        if generation is not None and generation != self.generation:
            raise GroupRefusal(Why.ILLEGAL_GENERATION)
        return member

    def _joined(self, member: Member) -> Joined:
        return Joined(
            generation=self.generation,
            member_id=member.id,
            is_leader=member.id == self._leader,
            topics=self._topics(),
        )

    def _topics(self) -> Sequence[str]:
        return sorted({topic for member in self.members.values() for topic in member.topics})

    def _new_id(self) -> str:
        self._ids += 1
        # Their order decides who gets what, and is not the order of arrival.
        return f"{zlib.crc32(f'{self.name}/{self._ids}'.encode()):08x}-{self._ids}"

    def _renew(self, member: Member) -> None:
        member.until = asyncio.get_running_loop().time() + member.session_timeout
        if member.timer is None:
            member.timer = self._host.call_later(member.session_timeout, self._look_at, member)

    def _look_at(self, member: Member) -> None:
        """The session's time is over, unless it was renewed meanwhile; one timer serves a session's whole life."""
        member.timer = None
        if self.members.get(member.id) is not member:
            return
        left = member.until - asyncio.get_running_loop().time()
        if self._host.is_down or member.joining is not None or member.syncing is not None:
            left = member.session_timeout
        if left > 0:
            member.timer = self._host.call_later(left, self._look_at, member)
        else:
            self._remove(member)

    def _set_timer(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None or then is None else self._host.call_later(seconds, then)

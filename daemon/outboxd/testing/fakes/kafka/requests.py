"""What goes between a client and the coordinator of its group: refusals, and answers that come later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

from outboxd.errors import BrokerError, BrokerUnreachable
from outboxd.records import TopicPartition
from outboxd.testing.fakes.kafka.bell import Bell

__all__ = ["Assigned", "Disconnected", "GroupRefusal", "Joined", "NoBroker", "Parked", "Why"]

_T = TypeVar("_T")

Assigned = Sequence[TopicPartition]
"""The partitions of one member."""


class Disconnected(BrokerUnreachable):
    """A connection broke or a request was lost: the client tries again by itself until its own deadline.

    A network raises it out of `around` for what passes; any other error is what the call ends with.
    """


class NoBroker(Disconnected):
    """No broker is there at all."""


class Why(Enum):
    """Why the coordinator refuses."""

    MEMBER_ID_REQUIRED = auto()
    """A first join only gets a member id, to join with."""
    UNKNOWN_MEMBER = auto()
    ILLEGAL_GENERATION = auto()
    REBALANCE_IN_PROGRESS = auto()
    INVALID_SESSION_TIMEOUT = auto()
    DENIED = auto()


class GroupRefusal(BrokerError):
    """The coordinator's error code. ``member_id`` comes with MEMBER_ID_REQUIRED."""

    def __init__(self, why: Why, member_id: str = "") -> None:
        super().__init__(why.name.lower())
        self.why = why
        self.member_id = member_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The answer to a join."""

    generation: int
    member_id: str
    is_leader: bool
    topics: Sequence[str]
    """All topics of the group, which its leader watches."""


class Parked(Generic[_T]):
    """A request that the coordinator keeps until it can answer. The answer itself is to be fetched."""

    def __init__(self, answer: _T | None = None) -> None:
        self._bell = Bell()
        self._answer = answer
        self._refusal: Why | None = None

    async def wait(self) -> None:
        """Return when the answer is there."""
        while self._answer is None and self._refusal is None:
            await self._bell.wait(self._bell.count)

    def resolve(self, answer: _T) -> None:
        """Answer."""
        self._answer = answer
        self._bell.ring()

    def refuse(self, why: Why) -> None:
        """Answer with an error code."""
        self._refusal = why
        self._bell.ring()

    def collect(self) -> _T:
        """The answer. Raises GroupRefusal."""
        if self._refusal is not None:
            raise GroupRefusal(self._refusal)
        assert self._answer is not None
        return self._answer

"""How a client reaches the cluster: every request through `Faults.around`, tried again by itself until a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from outboxd.errors import BrokerError, BrokerUnreachable, TopicDenied, TopicError, TopicUnknown
from outboxd.ports import TopicInfo
from outboxd.testing.fakes.kafka.brokers import Brokers
from outboxd.testing.fakes.kafka.requests import Disconnected, NoBroker

__all__ = ["ANSWER_DEADLINE", "CLOSE_DEADLINE", "REQUEST_TIMEOUT", "Connection", "Directory"]

_T = TypeVar("_T")

REQUEST_TIMEOUT: Final = 30.0
CONNECT_DEADLINE: Final = 15.0
ANSWER_DEADLINE: Final = 10.0
CLOSE_DEADLINE: Final = 5.0
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
_FRESH: Final = 30.0
_UNKNOWN_FOR: Final = 2.0


class Connection:
    """One client's way to the brokers. ``is_dead`` is set when its process is: nothing gets through any more."""

    def __init__(self, brokers: Brokers) -> None:
        self.brokers = brokers
        self.is_dead = False

    async def connect(self) -> None:
        """The first contact, which is not tried again. Raises BrokerUnreachable, BrokerDenied."""
        try:
            async with asyncio.timeout(CONNECT_DEADLINE):
                await self.once("connect", lambda: None)
        except TimeoutError as error:
            raise BrokerUnreachable("could not connect in time") from error

    async def once(self, call: str, effect: Callable[[], _T]) -> _T:
        """One request. Raises Disconnected when it or its answer got lost."""
        if self.is_dead:
            raise BrokerUnreachable("this process is dead")
        return await self.brokers.faults.around(call, lambda: self.brokers.answer(effect))

    async def ask(self, call: str, effect: Callable[[], _T], *, seconds: float = ANSWER_DEADLINE) -> _T:
        """The answer to a request that may be made again. Raises BrokerUnreachable after ``seconds``."""
        return await self.persist(lambda: self.once(call, effect), seconds=seconds, doing=call)

    async def persist(
        self,
        attempt: Callable[[], Awaitable[_T]],
        *,
        seconds: float,
        doing: str,
        passing: tuple[type[BrokerError], ...] = (Disconnected,),
    ) -> _T:
        """What ``attempt`` gives, made again while it raises what is ``passing``. Raises BrokerUnreachable in the end."""
        pause = _FIRST_PAUSE
        try:
            async with asyncio.timeout(seconds):
                while True:
                    count = self.brokers.arrivals.count
                    try:
                        return await attempt()
                    except NoBroker:
                        await self.brokers.arrivals.wait(count)
                    except passing:
                        await asyncio.sleep(pause)
                        pause = min(2 * pause, _LONGEST_PAUSE)
        except TimeoutError as error:
            raise BrokerUnreachable(f"could not {doing}: no answer within {seconds:g} s") from error


class Directory:
    """Topics as one client remembers them: 30 s what a topic is, 2 s that there is none."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._entries: dict[str, tuple[float, TopicInfo | TopicError]] = {}

    async def get(self, name: str) -> TopicInfo:
        """The topic, at most 30 s old. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        until, answer = self._entries.get(name, (0.0, None))
        if answer is None or until < asyncio.get_running_loop().time():
            return await self.look_up(name)
        if isinstance(answer, TopicError):
            raise type(answer)(answer.message, topic=answer.topic, suggestion=answer.suggestion)
        return answer

    async def look_up(self, name: str) -> TopicInfo:
        """The topic as it is now. Raises TopicUnknown, TopicDenied, BrokerUnreachable."""
        loop = asyncio.get_running_loop()
        try:
            info = await self._connection.ask("topic", lambda: self._connection.brokers.describe(name))
        except (TopicUnknown, TopicDenied) as error:
            self._entries[name] = (loop.time() + _UNKNOWN_FOR, error)
            raise
        self._entries[name] = (loop.time() + _FRESH, info)
        return info

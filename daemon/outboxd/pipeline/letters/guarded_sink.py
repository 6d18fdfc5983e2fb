"""One sink of a chain as the core sees it: opened when it can be, never waited for longer than its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar, runtime_checkable

from outboxd.api import Plugin, ReadableSink, Sink
from outboxd.errors import SinkUnavailable
from outboxd.pipeline.letters.owned_calls import OwnedCalls
from outboxd.pipeline.letters.sink_breaker import SinkBreaker
from outboxd.pipeline.letters.text import describe
from outboxd.ports import Clock
from outboxd.records import Letter, Refused, Stored

__all__ = ["ChainLink", "GuardedSink", "ReleasableSink", "SinkPlugin"]

_T = TypeVar("_T")
_CLOSE_SECONDS: Final = 2.0
_READ_SECONDS: Final = 15.0


class SinkPlugin(Sink, Plugin, Protocol):
    """A sink with the frame of every plugin."""


@runtime_checkable
class ReleasableSink(Protocol):
    """A readable sink that may forget what was carried home."""

    async def release(self, position: str) -> None:
        """Everything before ``position`` is home for good: its room may be given back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """A sink in its place in a chain.

    ``name`` is unique in the chain, ``type`` the plugin's registered name, ``deadline`` the total for one write,
    connecting included. ``is_drained``: carry its letters home (`drain` of the YAML).
    """

    name: str
    type: str
    sink: SinkPlugin
    deadline: timedelta
    is_drained: bool = True


class GuardedSink:
    """Opens, writes, reads and closes a sink within deadlines. A sink that cannot be opened is tried again later."""

    def __init__(self, link: ChainLink, clock: Clock, on_late: Callable[[], None] = lambda: None) -> None:
        self.link = link
        self.breaker = SinkBreaker(clock)
        self.reason: str | None = None
        """Why the latest write failed; None while all is well."""
        self.letters = 0
        """Letters stored since the start."""
        self.stored = asyncio.Event()
        """Set when letters were stored; whoever drains the sink clears it."""
        self._writes = OwnedCalls(f"sink {link.name}", on_late)
        self._reads = OwnedCalls(f"reading sink {link.name}")
        self._is_open = False
        self._opening = asyncio.Lock()

    @property
    def name(self) -> str:
        """The sink's name in its chain."""
        return self.link.name

    @property
    def is_readable(self) -> bool:
        """True when letters can be read back from it."""
        return isinstance(self.link.sink, ReadableSink)

    @property
    def is_local(self) -> bool:
        """True when each replica has letters of its own in it (a class attribute ``is_local`` of the sink's type)."""
        return bool(getattr(self.link.sink, "is_local", False))

    async def open(self) -> None:
        """Make the sink ready within its deadline. Raises SinkUnavailable; the next write tries again."""
        await self._guarded(self._open)

    async def write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        """One answer per letter. Raises SinkUnavailable within the sink's deadline, whatever the plugin does."""
        answers = await self._guarded(lambda: self._open_and_write(letters))
        stored = sum(isinstance(answer, Stored) for answer in answers)
        self.letters += stored
        if stored:
            self.stored.set()
        return answers

    async def read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
        """As `ReadableSink.read`. Raises SinkUnavailable within 15 seconds; says nothing about writes."""
        return await self._reads.run(lambda: self._open_and_read(position, limit), _READ_SECONDS)

    async def release(self, position: str) -> None:
        """Let the sink forget what was carried home, if it can."""
        sink = self.link.sink
        if isinstance(sink, ReleasableSink):
            await self._reads.run(lambda: sink.release(position), _READ_SECONDS)

    async def close(self) -> None:
        """Close the sink and end every call, within seconds. Raises SinkUnavailable when that was not enough."""
        left = await self._writes.close(_CLOSE_SECONDS) + await self._reads.close(_CLOSE_SECONDS)
        closing = OwnedCalls(f"closing sink {self.name}")
        try:
            await closing.run(self.link.sink.close, max(_CLOSE_SECONDS, self.link.deadline.total_seconds()))
        finally:
            self._is_open = False
            left += await closing.close(_CLOSE_SECONDS)
        if left:
            raise SinkUnavailable(f"{left} calls of sink {self.name} ignore their cancellation and still run")

    def status(self) -> Mapping[str, object]:
        """How the sink is, for the pipeline's status."""
        return {
            "name": self.name,
            "type": self.link.type,
            "state": "failed" if self.breaker.is_open else "ok",
            "reason": self.reason,
            "retry_in": round(self.breaker.retry_in, 1),
            "is_durable": self.link.sink.is_durable,
            "letters": self.letters,
        }

    async def _guarded(self, verb: Callable[[], Awaitable[_T]]) -> _T:
        mark = self.breaker.began()
        try:
            answer = await self._writes.run(verb, self.link.deadline.total_seconds())
        except Exception as error:
            # A sink that raises anything else is as useless for now as one that says SinkUnavailable.
            self.breaker.failed(mark)
            self.reason = describe(error)
            raise error if isinstance(error, SinkUnavailable) else SinkUnavailable(self.reason) from error
        finally:
            self.breaker.ended()
        return answer

    async def _open(self) -> None:
        async with self._opening:
            if not self._is_open:
                await self.link.sink.open()
                self._is_open = True

    async def _open_and_write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        await self._open()
        answers = await self.link.sink.write(letters)
        if len(answers) != len(letters) or not all(isinstance(answer, Stored | Refused) for answer in answers):
            raise SinkUnavailable(
                f"sink {self.name} gave {len(answers)} answers for {len(letters)} letters; which are stored is unknown",
                suggestion="mend the plugin: `write` answers Stored or Refused for each letter, in order",
            )
        return answers

    async def _open_and_read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
        await self._open()
        sink = self.link.sink
        if not isinstance(sink, ReadableSink):
            raise SinkUnavailable(f"sink {self.name} cannot be read")
        return await sink.read(position, limit)

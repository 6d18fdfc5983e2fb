"""The way from a simulated process to a server and back: the only way in which a process touches the outside."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any, Generic, TypeVar, cast

from outboxd.testing.fakes.faults import Faults
from tests.simulation.journal import Journal
from tests.simulation.loop import OWNER
from tests.simulation.process import Process
from tests.simulation.weather import Fate, Kill, Trouble, Weather

__all__ = ["Network"]

_T = TypeVar("_T")


class Network(Faults):
    """Calls to one server, which may be down (refuses) or frozen (accepts, and answers when it goes on).

    The double of the server is given this in place of its `Faults`. What a request does, it does outside of every
    process, whatever became of the caller. ``unreachable(call, was_sent)`` makes the error that the adapter would raise;
    ``deadline`` is the adapter's own, in seconds.
    """

    def __init__(
        self,
        server: str,
        *,
        weather: Weather,
        journal: Journal,
        unreachable: Callable[[str, bool], Exception],
        deadline: float,
    ) -> None:
        super().__init__()
        self.server = server
        self.deadline = deadline
        self.is_down = False
        self.is_frozen = False
        self.ill_since = math.inf
        """When it was killed or frozen; never while it works."""
        self._weather = weather
        self._journal = journal
        self._unreachable = unreachable
        self._context: Context = copy_context()
        self._context.run(OWNER.set, None)
        self._waiting: list[Callable[[], None]] = []
        self._open: dict[_Exchange[Any], None] = {}

    # -- what befalls the server

    def kill(self) -> None:
        """Connections break at once; what was done stays done."""
        self._journal.note(f"{self.server} is killed")
        self.is_down, self.is_frozen = True, False
        self.ill_since = asyncio.get_running_loop().time()
        self._waiting.clear()
        for exchange in list(self._open):
            exchange.fail(was_sent=True)

    def freeze(self) -> None:
        """Requests wait."""
        self._journal.note(f"{self.server} is frozen")
        self.is_frozen = True
        self.ill_since = asyncio.get_running_loop().time()

    def recover(self) -> None:
        """Up again; what waited is done now, in its order."""
        self._journal.note(f"{self.server} works again")
        self.is_down = self.is_frozen = False
        self.ill_since = math.inf
        waiting, self._waiting = self._waiting, []
        for arrive in waiting:
            arrive()

    # -- the call

    async def around(self, call: str, effect: Callable[[], _T]) -> _T:
        """Carry ``effect`` out on the server as the weather has it."""
        process = OWNER.get()
        if not isinstance(process, Process):
            return effect()  # the story itself
        if process.is_dead:
            raise self._unreachable(call, False)
        fate = self._weather.fate(call)
        self._journal.trace(f"{process.name} {call}")
        if fate.trouble is not None:
            self._journal.note(f"{process.name}: {call} {fate.trouble.value}")
        if fate.kill is Kill.BEFORE:
            await self._die(process, call, fate.kill)
        exchange: _Exchange[_T] = _Exchange(self, call, effect, fate)
        self._open[exchange] = None
        loop = asyncio.get_running_loop()
        loop.call_later(fate.there, exchange.arrive, context=self._context)
        if fate.trouble is Trouble.LATE:
            loop.call_later(fate.back, exchange.fail, context=self._context)
        if fate.kill is Kill.AFTER:
            await self._die(process, call, fate.kill)
        deadline = loop.call_later(self.deadline, exchange.fail)
        try:
            return await exchange.answer
        finally:
            deadline.cancel()
            self._open.pop(exchange, None)

    async def _die(self, process: Process, call: str, kill: Kill) -> None:
        process.kill(f"{kill.value} {call}")
        await asyncio.sleep(0)  # where its cancellation arrives
        raise self._unreachable(call, True)

    def later(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back after so many seconds, outside of every process."""
        asyncio.get_running_loop().call_later(seconds, callback, context=self._context)

    def wait_for_thaw(self, arrive: Callable[[], None]) -> None:
        """The server is frozen: the request lies in its socket."""
        self._waiting.append(arrive)

    def error(self, call: str, was_sent: bool) -> Exception:
        """What the adapter would raise."""
        return self._unreachable(call, was_sent)


class _Exchange(Generic[_T]):
    """One request and its answer."""

    def __init__(self, network: Network, call: str, effect: Callable[[], _T], fate: Fate) -> None:
        self.answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()
        self._network = network
        self._call = call
        self._effect = effect
        self._fate = fate

    def arrive(self) -> None:
        """The request is at the server."""
        network, trouble = self._network, self._fate.trouble
        if network.is_frozen:
            network.wait_for_thaw(self.arrive)
            return
        if network.is_down or trouble is Trouble.REFUSED:
            network.later(self._fate.back, partial(self.fail, was_sent=False))
            return
        if trouble is Trouble.REQUEST_LOST:
            return
        try:
            result = self._effect()
        except Exception as error:  # noqa: BLE001  # whatever the server raised is its answer
            self._reply(partial(self._settle, error=error))
        else:
            self._reply(partial(self._settle, result=result))

    def _reply(self, settle: Callable[[], None]) -> None:
        match self._fate.trouble:
            case Trouble.ANSWER_LOST | Trouble.LATE:
                return
            case Trouble.RESET:
                self._network.later(self._fate.back, self.fail)
            case _:
                self._network.later(self._fate.back, settle)

    def fail(self, was_sent: bool = True) -> None:
        """The caller hears of no answer any more, only that there is none."""
        if not self.answer.done():
            self._settle(error=self._network.error(self._call, was_sent))

    def _settle(self, *, result: _T | None = None, error: Exception | None = None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(cast("_T", result))
        else:
            self.answer.set_exception(error)
            self.answer.exception()  # the caller may be gone: nobody needs to hear of it twice

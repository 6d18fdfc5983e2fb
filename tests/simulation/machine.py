"""What a simulated process has of its own computer: threads and a disk."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from outboxd.testing.fakes.faults import Faults
from tests.simulation.journal import Journal
from tests.simulation.loop import OWNER
from tests.simulation.process import Process
from tests.simulation.weather import Fate, Kill, Trouble, Weather

__all__ = ["Disk", "SimulatedExecutor"]

_T = TypeVar("_T")


class SimulatedExecutor:
    """The executor port: the function runs later, as long as its process lives, whoever still waits for it."""

    def __init__(self, process: Process, weather: Weather) -> None:
        self._process = process
        self._weather = weather

    async def run(self, function: Callable[..., _T], *arguments: object) -> _T:
        """Call the function in a simulated thread."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_T] = loop.create_future()
        fate = self._weather.fate("thread")

        def work() -> None:
            if self._process.is_dead:
                return
            if fate.kill is not None:
                self._process.kill(f"{fate.kill.value} a function in a thread")
                if fate.kill is Kill.BEFORE:
                    return
            try:
                result = function(*arguments)
            except BaseException as error:  # noqa: BLE001  # as a future of a thread pool takes it
                loop.call_later(fate.back, partial(_settle, answer, error=error))
            else:
                loop.call_later(fate.back, partial(_settle, answer, result=result))

        loop.call_later(fate.there, work)
        return await asyncio.shield(answer)


def _settle(answer: asyncio.Future[_T], *, result: _T | None = None, error: BaseException | None = None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)  # type: ignore[arg-type]
    else:
        answer.set_exception(error)
        answer.exception()


class Disk(Faults):
    """The way of a process to its disk: it may be slow, refuse, or fail after the deed; never answers late, never twice.

    A dead process asks its kernel for nothing more: what it was about to do is not done.
    """

    def __init__(self, weather: Weather, journal: Journal) -> None:
        super().__init__()
        self._weather = weather
        self._journal = journal

    async def around(self, call: str, effect: Callable[[], _T]) -> _T:
        """Carry out one operation."""
        process = OWNER.get()
        if not isinstance(process, Process):
            return effect()
        fate = self._weather.fate(f"disk {call}")
        self._journal.trace(f"{process.name} disk {call}")
        if fate.kill is Kill.BEFORE:
            await self._die(process, f"before {call}")
        await asyncio.sleep(fate.there)
        if process.is_dead:
            raise OSError(errno.EIO, "the process is dead")
        if fate.trouble in {Trouble.REFUSED, Trouble.REQUEST_LOST} and call in _MAY_FAIL:
            self._journal.note(f"{process.name}: disk {call} fails")
            raise OSError(errno.EIO, "Input/output error")
        result = effect()
        if fate.kill is Kill.AFTER:
            await self._die(process, f"after {call}")
        await asyncio.sleep(fate.back)
        return self._answer(process, call, fate, result)

    async def _die(self, process: Process, where: str) -> None:
        process.kill(f"{where} on its disk")
        await asyncio.sleep(0)
        raise OSError(errno.EIO, "the process is dead")

    def _answer(self, process: Process, call: str, fate: Fate, result: _T) -> _T:
        if fate.trouble in {Trouble.RESET, Trouble.ANSWER_LOST} and call in _MAY_FAIL:
            self._journal.note(f"{process.name}: disk {call} is done and reported as failed")
            raise OSError(errno.EIO, "Input/output error")
        return result


_MAY_FAIL = {"append", "replace", "truncate", "read", "remove", "names", "size", "make_directory"}

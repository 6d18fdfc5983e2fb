"""A simulated process: it runs, stands still (SIGSTOP), is taken away for a while with its clock (a suspended machine), or dies."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.simulation.journal import Journal
from tests.simulation.loop import OWNER, SimulatedTask, SimulationLoop

__all__ = ["Process", "ProcessClock"]

_EPOCH: Final = datetime(2026, 1, 1, tzinfo=UTC)


class ProcessClock:
    """The clock port of one process: its monotonic time stands still while its machine is suspended, its wall time may jump."""

    def __init__(self) -> None:
        self.lost = 0.0
        self.skew = 0.0

    def monotonic(self) -> float:
        """Seconds."""
        return asyncio.get_running_loop().time() - self.lost

    def now(self) -> datetime:
        """Wall time; may go back."""
        return _EPOCH + timedelta(seconds=asyncio.get_running_loop().time() + self.skew)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class Process:
    """One replica from its start to its end.

    ``kill`` is kill -9: from that moment nothing of it reaches the outside. Its tasks are cancelled so that the memory is
    given back; what they still try is refused.
    """

    def __init__(self, name: str, journal: Journal) -> None:
        self.name = name
        self.clock = ProcessClock()
        self.is_dead = False
        self.is_held = False
        self._held: list[asyncio.Handle] = []
        self._journal = journal
        self._context = copy_context()
        self._context.run(OWNER.set, self)
        self.runs_since = asyncio.get_running_loop().time()
        """When it was started, or went on after it had stood still."""

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep what would have run."""
        self._held.append(handle)

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine in this process."""
        return asyncio.get_running_loop().create_task(
            coroutine, name=f"{self.name}: {name}", context=self._context.copy()
        )

    @property
    def tasks(self) -> list[SimulatedTask[Any]]:
        """Its tasks that have not ended, oldest first."""
        tasks = (task for task in asyncio.all_tasks() if isinstance(task, SimulatedTask) and task.owner is self)
        return sorted(tasks, key=lambda task: task.number)

    def kill(self, why: str) -> None:
        """End it here and now."""
        if self.is_dead:
            return
        self._journal.note(f"{self.name} is killed {why}")
        self.is_dead = True
        self._release()
        for task in self.tasks:
            task.cancel()

    def freeze(self, seconds: float, *, is_suspended: bool = False) -> None:
        """Stop it for so long; with ``is_suspended`` its monotonic clock stops too."""
        if self.is_dead or self.is_held:
            return
        self._journal.note(f"{self.name} {'is suspended' if is_suspended else 'is frozen'} for {seconds:.3f} s")
        self.is_held = True
        asyncio.get_running_loop().call_later(seconds, self._thaw, seconds if is_suspended else 0.0, context=_outside())

    def _thaw(self, lost: float) -> None:
        self.clock.lost += lost
        if self.is_held:
            self._journal.note(f"{self.name} goes on")
            self.runs_since = asyncio.get_running_loop().time()
            self._release()

    def _release(self) -> None:
        self.is_held = False
        held, self._held = self._held, []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        loop.again(held)


def _outside() -> Any:
    context = copy_context()
    context.run(OWNER.set, None)
    return context

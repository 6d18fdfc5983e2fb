"""What every simulated story shares: a seed, a schedule, servers behind networks, replicas that die and are started again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

from opentelemetry.metrics import NoOpMeter

from outboxd.errors import DatabaseUnreachable
from outboxd.pipeline.run import Health
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.metrics import Instruments
from outboxd.testing.fakes.kafka.requests import Disconnected
from tests.simulation.journal import Journal
from tests.simulation.network import Network
from tests.simulation.process import Process, ProcessClock
from tests.simulation.weather import Weather

__all__ = ["Quiet", "Replica", "Run", "Story", "Violation"]

_SHOWN_AFTER: Final = 25.0
_NO_INSTRUMENTS = Instruments(NoOpMeter("simulation"))


class Violation(AssertionError):
    """An invariant is broken; ``number`` is its number in the list, 0 for a promise that has none."""

    def __init__(self, number: int, words: str) -> None:
        super().__init__(f"invariant {number}: {words}" if number else words)
        self.number = number


class Run(Protocol):
    """A pipeline from one start to its end."""

    async def run(self) -> None: ...

    def stop(self) -> None: ...

    def health(self) -> Health: ...


class Quiet:
    """A logger that puts what a pipeline says into the schedule."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal

    def debug(self, event: str, **fields: object) -> None:
        """Nothing."""

    def info(self, event: str, **fields: object) -> None:
        """A line of the schedule."""
        shown = ", ".join(f"{key}={value}" for key, value in fields.items() if key not in {"pipeline", "traceback"})
        self._journal.note(f"    {self._name}: {event} {shown}"[:300])

    warning = error = info


class Replica:
    """A place where a pipeline runs: one process after the other, each with a run of its own."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.starts = 0
        self.process: Process | None = None
        self.run: Run | None = None
        self.task: asyncio.Task[Any] | None = None

    @property
    def is_alive(self) -> bool:
        """Whether a process runs here."""
        return self.process is not None and not self.process.is_dead


class Story:
    """One simulated run. Subclasses say which servers there are, what a replica runs, and what must hold."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.journal = Journal()
        self.weather = Weather(self.chance)
        self.replicas = [Replica(number) for number in range(self.chance.choice([1, 2, 2, 3]))]
        self.networks: dict[str, Network] = {}
        self.database_clock = ProcessClock()
        self.events: list[Callable[[], Awaitable[None]]] = [
            self._a_replica_dies,
            self._a_replica_dies,
            self._a_replica_stands_still,
            self._a_replica_is_stopped,
            self._a_server_fails,
            self._a_server_fails,
            self._a_clock_jumps,
            self._nothing,
            self._nothing,
            self._nothing,
        ]
        """What may happen; each with the same chance."""
        self.is_over = False
        self.journal.note(f"weather: {self.weather}")

    # -- to be said by each story

    def make_run(self, replica: Replica, process: Process) -> Run:
        """The pipeline's next start in this process."""
        raise NotImplementedError

    async def play(self) -> None:
        """The story until all trouble ends."""
        raise NotImplementedError

    def check(self) -> None:
        """What must hold at every moment."""
        raise NotImplementedError

    def is_finished(self) -> bool:
        """Whether everything there was to do is done."""
        raise NotImplementedError

    def judge(self) -> None:
        """What must hold in the end."""
        raise NotImplementedError

    def state(self) -> str:
        """What is left to do, for the message of a story that does not finish."""
        raise NotImplementedError

    shows: Sequence[str] = ()
    """Servers without which no replica works: each says so while one of them is away (invariant 12)."""

    # -- the frame

    async def tell(self) -> None:
        """Play, let all trouble end, wait for the end of all work, judge. Raises Violation."""
        asyncio.get_running_loop().set_exception_handler(self._complained)
        for replica in self.replicas:
            self.start(replica)
        try:
            await self.play()
            self._end_trouble()
            await self._finish(seconds=400.0)
            self.check()
            self.judge()
        finally:
            await self._clear_away()

    def network(self, server: str, deadline: float) -> Network:
        """The way to a server that is named `broker`, `database` or otherwise."""
        made = Network(
            server,
            weather=self.weather,
            journal=self.journal,
            unreachable=_broker_error if server == "broker" else _database_error,
            deadline=deadline,
        )
        self.networks[server] = made
        return made

    def telemetry(self, process: Process) -> Telemetry:
        """Telemetry whose lines stand in the schedule."""
        return Telemetry(Quiet(process.name, self.journal), _NO_INSTRUMENTS)

    def start(self, replica: Replica) -> None:
        """A new process with a new run, unless there is one."""
        if replica.is_alive:
            return
        replica.starts += 1
        process = replica.process = Process(f"replica-{replica.number}.{replica.starts}", self.journal)
        replica.run = self.make_run(replica, process)
        replica.task = process.start(self._watched(replica, process, replica.run), "run")

    async def _watched(self, replica: Replica, process: Process, run: Run) -> None:
        try:
            await run.run()
        except Exception as error:  # noqa: BLE001  # whatever ended the run is for the check
            if not process.is_dead:
                self.failed(process, error)

    def failed(self, process: Process, error: Exception) -> None:
        """A run ended by an error that no fault explains."""
        self._failure = Violation(0, f"{process.name} ended: {type(error).__name__}: {error}")
        self._failure.__cause__ = error

    _failure: Violation | None = None

    def _complained(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The loop's last resort: an exception that nobody took is a fault of somebody."""
        error = context.get("exception")
        words = f"{context.get('message')}: {type(error).__name__}: {error}; {context.get('task') or context.get('future') or ''}"
        self.journal.note(f"the loop complains: {words}"[:300])
        self._failure = self._failure or Violation(0, f"the event loop complains: {words}")
        self._failure.__cause__ = error if isinstance(error, BaseException) else None

    # -- what happens to replicas and servers

    async def something_happens(self) -> None:
        """One event of the story."""
        await self.chance.choice(self.events)()

    def _a_process(self) -> Process | None:
        return self.chance.choice(self.replicas).process

    async def _nothing(self) -> None:
        await self.sleep(self.chance.random() * 4)

    async def _a_replica_dies(self) -> None:
        if (process := self._a_process()) is not None:
            process.kill("out of the blue")

    async def _a_replica_stands_still(self) -> None:
        if (process := self._a_process()) is not None:
            seconds = self.chance.random() * self.chance.choice([1, 8, 30])
            process.freeze(seconds, is_suspended=self.chance.random() < 0.4)

    async def _a_replica_is_stopped(self) -> None:
        await self.stop(self.chance.choice(self.replicas))

    async def _a_clock_jumps(self) -> None:
        process, chance = self._a_process(), self.chance
        if process is not None and chance.random() < 0.4:
            process.clock.skew += chance.choice([-3600.0, 3600.0])
        else:
            jump = chance.choice([-30.0, -3.0, 3.0, 30.0])
            self.journal.note(f"the database's clock jumps by {jump:g} s")
            self.database_clock.lost -= jump

    async def _a_server_fails(self) -> None:
        await self.server_fails(self.chance.choice(list(self.networks)))

    def server_died(self, server: str) -> None:
        """A server was killed; the network has cut its connections."""

    def server_came_back(self, server: str) -> None:
        """It is up again."""

    async def server_fails(self, server: str) -> None:
        """Kill or freeze a server for a while."""
        network, chance = self.networks[server], self.chance
        if chance.random() < 0.5:
            network.kill()
            self.server_died(server)
        else:
            network.freeze()
        await self.sleep(chance.random() * chance.choice([0.5, 5, 30]))
        self.server_came_back(server)
        network.recover()

    def check_runs(self) -> None:
        """Raise what ended a run."""
        if self._failure is not None:
            raise self._failure

    async def sleep(self, seconds: float, step: float = 0.5) -> None:
        """Let time pass, looking at what must hold, and starting again whoever died."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            await asyncio.sleep(min(step, left))
            self.check_runs()
            self.check()
            self._check_status()
            self._revive()

    def _check_status(self) -> None:
        now = asyncio.get_running_loop().time()
        for server in self.shows:
            away_for = now - self.networks[server].ill_since
            for replica in self.replicas:
                process, run = replica.process, replica.run
                if process is None or run is None or process.is_dead or process.is_held:
                    continue
                if min(away_for, now - process.runs_since) < _SHOWN_AFTER:
                    continue
                health = run.health()
                if health.is_ready and health.stall is None and replica.task is not None and not replica.task.done():
                    raise Violation(12, f"{server} is away for {away_for:.0f} s, and {process.name} says {health}")

    def _revive(self) -> None:
        for replica in self.replicas:
            if not replica.is_alive and (self.is_over or self.chance.random() < 0.3):
                self.start(replica)

    async def until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until it is so; False when it never came to be."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not is_so():
            if loop.time() >= until:
                return False
            await self.sleep(0.5)
        return True

    async def stop(self, replica: Replica, patience: float = 40.0) -> None:
        """SIGTERM: drain within the patience of a supervisor, then kill."""
        run, task, process = replica.run, replica.task, replica.process
        if run is None or task is None or process is None or process.is_dead:
            return
        self.journal.note(f"{process.name} is asked to stop")
        # In the process, and later if that stands still: a signal is taken when it runs again.
        process.start(_call(run.stop), "signal")
        await asyncio.wait({task}, timeout=patience)
        if not task.done():
            process.kill("since it does not stop in time")
        process.is_dead = True

    def _end_trouble(self) -> None:
        self.journal.note("all trouble ends")
        self.is_over = True
        self.weather.calm()
        for network in self.networks.values():
            network.recover()

    async def _finish(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            if not await self.until(self.is_finished, until - loop.time()):
                health = {r.process.name: r.run.health() for r in self.replicas if r.process and r.run}
                raise Violation(2, f"not finished {seconds:g} s after all trouble: {self.state()}; {health}")
            await self.sleep(15.0)  # what repeats, repeats now; a last request of an operator may still arrive
            if self.is_finished():
                break
        await self.until(lambda: not self._ill(), seconds=120.0)
        if ill := self._ill():
            raise Violation(12, f"everything is done, and a replica says otherwise: {ill}")
        if not self.is_finished():
            raise Violation(2, f"it was finished and is not any more: {self.state()}")

    def _ill(self) -> dict[str, Health]:
        healths = {r.process.name: r.run.health() for r in self.replicas if r.process and r.run}
        return {name: health for name, health in healths.items() if not health.is_ready or health.stall is not None}

    async def _clear_away(self) -> None:
        for replica in self.replicas:
            if replica.process is not None:
                replica.process.is_dead = True
                if replica.process.is_held:
                    replica.process._thaw(0.0)
        mine = asyncio.current_task()
        left: list[asyncio.Task[Any]] = []
        for _ in range(20):
            left = [task for task in asyncio.all_tasks() if task is not mine]
            if not left:
                return
            for task in sorted(left, key=lambda task: task.get_name()):
                task.cancel()
            await asyncio.wait(left, timeout=30.0)
        raise Violation(0, f"tasks that never end: {[task.get_name() for task in left]}")


async def _call(function: Callable[[], None]) -> None:
    function()


def _broker_error(call: str, was_sent: bool) -> Exception:
    return Disconnected(f"{call}: no answer from the broker")


def _database_error(call: str, was_sent: bool) -> Exception:
    return DatabaseUnreachable(f"{call}: no answer from the database")

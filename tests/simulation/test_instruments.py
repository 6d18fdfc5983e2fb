"""The simulator's own parts: processes that stand still or die, calls that get lost, and the order in which things happen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from outboxd.errors import DatabaseUnreachable
from tests.simulation.journal import Journal
from tests.simulation.loop import OWNER, SimulationLoop, StuckSimulation
from tests.simulation.network import Network
from tests.simulation.process import Process
from tests.simulation.weather import Fate, Kill, Trouble, Weather


def _run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=SimulationLoop) as runner:
        runner.run(story())


class _Planned(Weather):
    """Gives the fates that a test planned."""

    def __init__(self, *fates: Fate) -> None:
        super().__init__(random.Random(0))
        self._fates = list(fates)

    def fate(self, call: str) -> Fate:
        return self._fates.pop(0) if self._fates else Fate(0.01, 0.01)


def _network(*fates: Fate, deadline: float = 5.0) -> Network:
    return Network(
        "database",
        weather=_Planned(*fates),
        journal=Journal(),
        unreachable=lambda call, was_sent: DatabaseUnreachable(f"{call} {was_sent}"),
        deadline=deadline,
    )


async def _outcome(network: Network, process: Process, done: list[float]) -> tuple[object, float]:
    """What a call of the process came to, and when."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    def store() -> str:
        done.append(loop.time() - began)
        return "stored"

    async def call() -> object:
        try:
            return await network.around("store", store)
        except DatabaseUnreachable as error:
            return error

    return await process.start(call(), "call"), loop.time() - began


def test_a_frozen_process_runs_nothing_until_it_goes_on_and_then_all_of_it_in_order() -> None:
    async def story() -> None:
        process, seen = Process("p", Journal()), list[tuple[int, float]]()
        began = asyncio.get_running_loop().time()

        async def tick(number: int) -> None:
            await asyncio.sleep(number)
            seen.append((number, asyncio.get_running_loop().time() - began))

        for number in (3, 1, 2):
            process.start(tick(number), f"tick {number}")
        await asyncio.sleep(1.5)
        process.freeze(10)
        await asyncio.sleep(20)
        assert [(number, round(at, 3)) for number, at in seen] == [(1, 1.0), (2, 11.5), (3, 11.5)]

    _run(story)


def test_a_suspended_machine_loses_the_time_on_its_own_clock() -> None:
    async def story() -> None:
        frozen, suspended = Process("a", Journal()), Process("b", Journal())
        before = frozen.clock.monotonic(), suspended.clock.monotonic()
        frozen.freeze(5)
        suspended.freeze(5, is_suspended=True)
        await asyncio.sleep(6)
        assert frozen.clock.monotonic() - before[0] == pytest.approx(6)
        assert suspended.clock.monotonic() - before[1] == pytest.approx(1)

    _run(story)


def test_a_killed_process_reaches_nothing_more_but_what_it_had_sent_arrives() -> None:
    async def story() -> None:
        network, process, done = _network(Fate(3.0, 0.1)), Process("p", Journal()), list[str]()

        async def call() -> None:
            try:
                await network.around("store", lambda: done.append("sent before"))
            finally:
                await network.around("release", lambda: done.append("sent after"))

        task = process.start(call(), "call")
        await asyncio.sleep(1)
        process.kill("for the test")
        await asyncio.wait({task})
        assert done == []
        await asyncio.sleep(5)
        assert done == ["sent before"]

    _run(story)


@pytest.mark.parametrize(
    ("fate", "answer", "answered_at", "done_at"),
    [
        (Fate(0.5, 0.25), "stored", 0.75, 0.5),
        (Fate(0.5, 0.25, Trouble.REFUSED), "store False", 0.75, None),
        (Fate(0.5, 0.25, Trouble.REQUEST_LOST), "store True", 5.0, None),
        (Fate(0.5, 0.25, Trouble.RESET), "store True", 0.75, 0.5),
        (Fate(0.5, 0.25, Trouble.ANSWER_LOST), "store True", 5.0, 0.5),
        (Fate(9.0, 0.25, Trouble.LATE), "store True", 0.25, 9.0),
        (Fate(0.5, 0.25, kill=Kill.BEFORE), None, 0.0, None),
        (Fate(0.5, 0.25, kill=Kill.AFTER), None, 0.0, 0.5),
    ],
)
def test_each_fate_of_a_call_is_what_it_says(
    fate: Fate, answer: str | None, answered_at: float, done_at: float | None
) -> None:
    async def story() -> None:
        network, process, done = _network(fate), Process("p", Journal()), list[float]()
        if answer is None:
            with pytest.raises(asyncio.CancelledError):
                await _outcome(network, process, done)
            assert process.is_dead
        else:
            outcome, at = await _outcome(network, process, done)
            assert (str(outcome), round(at, 3)) == (answer, answered_at)
        await asyncio.sleep(20)
        assert [round(at, 3) for at in done] == ([] if done_at is None else [done_at])

    _run(story)


def test_a_killed_server_breaks_its_connections_and_keeps_what_was_done() -> None:
    async def story() -> None:
        network, process, done = _network(Fate(0.5, 3.0)), Process("p", Journal()), list[float]()
        asyncio.get_running_loop().call_later(1.0, network.kill)
        outcome, at = await _outcome(network, process, done)
        assert (str(outcome), round(at, 3), len(done)) == ("store True", 1.0, 1)
        outcome, _ = await _outcome(network, process, done)
        assert (str(outcome), len(done)) == ("store False", 1)
        network.recover()
        assert (await _outcome(network, process, done))[0] == "stored"

    _run(story)


def test_a_frozen_server_does_late_what_lay_in_its_socket() -> None:
    async def story() -> None:
        network, process, done = _network(), Process("p", Journal()), list[float]()
        network.freeze()
        outcome, at = await _outcome(network, process, done)
        assert (str(outcome), round(at, 3), done) == ("store True", 5.0, [])
        await asyncio.sleep(2)
        network.recover()
        assert [round(at, 3) for at in done] == [7.0]

    _run(story)


def test_what_a_request_does_belongs_to_no_process() -> None:
    async def story() -> None:
        network, process, owners = _network(), Process("p", Journal()), list[object]()

        async def call() -> None:
            await network.around("store", lambda: owners.append(OWNER.get()))

        await process.start(call(), "call")
        assert owners == [None]

    _run(story)


def test_a_run_that_spins_is_ended_and_says_who_was_there() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        loop.most_callbacks = 1000

        async def spin() -> None:
            while True:
                await asyncio.sleep(0)

        await loop.create_task(spin(), name="the one that spins")

    with pytest.raises(StuckSimulation, match="the one that spins"):
        _run(story)

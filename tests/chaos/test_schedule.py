"""A schedule is its seed's: the same again for the same seed, and every fault that began is ended."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import islice

import pytest

from outboxd.testing.chaos import Fault, NotSeen, Schedule, until


def _fault(name: str, log: list[str], *, weight: int = 1, is_broken: bool = False) -> Fault:
    async def begin() -> None:
        log.append(f"begin {name}")
        if is_broken:
            raise RuntimeError(name)

    async def end() -> None:
        log.append(f"end {name}")

    return Fault(name=name, begin=begin, end=end, lasts=(0, 0.01), weight=weight, deadline=timedelta(seconds=5))


def _plan(seed: int) -> list[str]:
    faults = [_fault(name, [], weight=weight) for name, weight in (("kill", 3), ("freeze", 1), ("cut", 1))]
    return [str(strike) for strike in islice(Schedule(seed=seed, faults=faults).strikes(), 50)]


def test_the_same_seed_draws_the_same_faults_and_another_one_others() -> None:
    assert _plan(1) == _plan(1)
    assert _plan(1) != _plan(2)


def test_a_weight_makes_a_fault_more_frequent() -> None:
    text = " ".join(_plan(1))
    assert text.count("kill") > text.count("freeze") > 0


async def test_what_struck_is_told_with_the_seed() -> None:
    log: list[str] = []
    schedule = Schedule(seed=7, faults=[_fault("a", log), _fault("b", log)], pause=(0, 0.01))
    await schedule.run(strikes=4)
    assert len(schedule.done) == 4
    assert [line.partition(" ")[0] for line in log] == ["begin", "end"] * 4
    assert str(schedule).startswith("seed 7: after 0.0 s ")
    assert [strike.fault.name for strike in schedule.done] == [line.removeprefix("begin ") for line in log[::2]]


@pytest.mark.parametrize("how", ["it fails to begin", "the run is cancelled"])
async def test_a_fault_that_began_is_ended(how: str) -> None:
    log: list[str] = []
    fault = _fault("a", log, is_broken=how == "it fails to begin")
    schedule = Schedule(
        seed=1, faults=[Fault(name="a", begin=fault.begin, end=fault.end, lasts=(60, 60))], pause=(0, 0)
    )
    running = asyncio.create_task(schedule.run(strikes=1))
    while not log:
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert log == ["begin a", "end a"]


async def test_a_run_needs_a_bound() -> None:
    with pytest.raises(ValueError, match="how long"):
        await Schedule(seed=1, faults=[_fault("a", [])]).run()


async def test_waiting_in_vain_says_what_for_and_how_things_are() -> None:
    async def hangs() -> bool:
        await asyncio.sleep(60)
        return True

    async def instead() -> str:
        return "it rains"

    with pytest.raises(NotSeen, match=r"until the sun shines; it rains"):
        await until(hangs, within=timedelta(seconds=0.05), what="the sun shines", but=instead)

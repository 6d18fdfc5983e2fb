"""The ports `Clock` and `Random`: time that only grows and agrees with the event loop's, chance within its bounds."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from outboxd.ports import Clock, Random
from outboxd.runtime.clock import SystemClock
from outboxd.runtime.random import SystemRandom
from outboxd.testing.fakes.clock import FakeClock, SeededRandom
from tests.conformance.telling import Stage, conforms, in_real_time, in_virtual_time


@asynccontextmanager
async def virtual() -> AsyncIterator[Clock]:
    yield FakeClock()


@asynccontextmanager
async def system() -> AsyncIterator[Clock]:
    yield SystemClock()


@pytest.fixture(params=["double", "system"])
def clock(request: pytest.FixtureRequest) -> Stage:
    return in_virtual_time(virtual) if request.param == "double" else in_real_time(system)


@pytest.fixture(params=["double", "system"])
def chance(request: pytest.FixtureRequest) -> Random:
    return SeededRandom(1) if request.param == "double" else SystemRandom()


@conforms
async def test_monotonic_time_never_goes_back(clock: Clock) -> None:
    seen = []
    for _ in range(200):
        seen.append(clock.monotonic())
        await asyncio.sleep(0)
    assert seen == sorted(seen)


@conforms
async def test_sleeping_takes_its_time_by_both_clocks(clock: Clock) -> None:
    began, wall = clock.monotonic(), clock.now()
    for _ in range(5):
        await clock.sleep(0.013)
    assert clock.monotonic() - began >= 5 * 0.013 - 0.001  # a loop may round its timers to milliseconds
    assert clock.now() - wall >= timedelta(seconds=0.05)


@conforms
async def test_wall_time_is_aware_and_utc(clock: Clock) -> None:
    assert clock.now().utcoffset() == timedelta()
    assert clock.now().year >= 2020


@conforms
async def test_who_sleeps_for_nothing_lets_others_run_and_goes_on(clock: Clock) -> None:
    ran: list[str] = []

    async def other() -> None:
        ran.append("other")

    others = asyncio.ensure_future(other())
    for seconds in (0, -1.0):
        await clock.sleep(seconds)
        ran.append("back")
    assert ran == ["other", "back", "back"]
    assert others.done()


@conforms
async def test_sleepers_wake_in_the_order_of_their_times(clock: Clock) -> None:
    woken: list[float] = []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(seconds)

    await asyncio.gather(*(sleeper(seconds) for seconds in (0.06, 0.02, 0.04, 0.0)))
    assert woken == [0.0, 0.02, 0.04, 0.06]


@conforms
async def test_deadlines_of_the_loop_end_a_sleep(clock: Clock) -> None:
    began = clock.monotonic()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await clock.sleep(600)
    assert 0.01 < clock.monotonic() - began < 300


@conforms
async def test_a_sleeper_that_is_cancelled_wakes_at_once(clock: Clock) -> None:
    sleeping = asyncio.ensure_future(clock.sleep(600))
    await clock.sleep(0.01)
    sleeping.cancel()
    began = clock.monotonic()
    await asyncio.wait({sleeping})
    assert sleeping.cancelled()
    assert clock.monotonic() - began < 300


def test_a_float_stays_within_its_bounds(chance: Random) -> None:
    drawn = [chance.uniform(-1.5, 2.5) for _ in range(2000)]
    assert all(-1.5 <= value <= 2.5 for value in drawn)
    assert min(drawn) < -1 < 2 < max(drawn)
    assert chance.uniform(3.0, 3.0) == 3.0


def test_a_token_is_eight_hex_digits_and_hardly_ever_the_same(chance: Random) -> None:
    drawn = [chance.token() for _ in range(2000)]
    assert all(re.fullmatch("[0-9a-f]{8}", token) for token in drawn)
    assert len(set(drawn)) > 1990


def test_a_uuid_is_of_version_4_and_never_the_same(chance: Random) -> None:
    drawn = [chance.uuid() for _ in range(2000)]
    assert {(made.version, made.variant) for made in drawn} == {(4, "specified in RFC 4122")}
    assert len(set(drawn)) == 2000

"""The port `TargetStore`: what the operator wants survives a restart, also when an answer is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from outboxd.errors import DatabaseUnreachable
from outboxd.lifecycle import TargetState
from outboxd.ports import Target, TargetStore
from outboxd.runtime.targets import FileTargetStore
from tests.conformance.double_stores import double_stores
from tests.conformance.postgres_stores import real_stores
from tests.conformance.store_world import Loss, StoreWorld
from tests.conformance.telling import Stage, conforms, in_real_time, in_virtual_time

PAUSED = Target(state=TargetState.PAUSED, actor="ann", at=datetime(2026, 5, 1, 7, 8, 9, 123, UTC), reason="inventory")
STARTED = Target(state=TargetState.STARTED, actor="bob", at=datetime(2026, 5, 2, tzinfo=UTC))


@dataclass(frozen=True, slots=True)
class Places:
    """``targets`` before a restart, ``restarted`` after it."""

    targets: TargetStore
    restarted: TargetStore


@asynccontextmanager
async def files(path: Path) -> AsyncIterator[Places]:
    before, after = FileTargetStore(path), FileTargetStore(path)
    yield Places(before, after)
    before.close()
    after.close()


@asynccontextmanager
async def doubles() -> AsyncIterator[Places]:
    async with double_stores() as world:
        yield Places(world.targets, world.other.targets)


@asynccontextmanager
async def databases(dsn: str) -> AsyncIterator[Places]:
    async with real_stores(dsn) as world:
        yield Places(world.targets, world.other.targets)


@pytest.fixture(params=["double", "file", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    if request.param == "double":
        return in_virtual_time(doubles)
    if request.param == "file":
        return in_real_time(lambda: files(tmp_path / "shop" / "targets.json"))
    dsn: str = request.getfixturevalue("store_database")
    return in_real_time(lambda: databases(dsn))


@conforms
async def test_nothing_is_wanted_in_the_beginning(places: Places) -> None:
    assert await places.targets.load() == {}


@conforms
async def test_the_last_target_of_each_pipeline_survives_a_restart(places: Places) -> None:
    await places.targets.save("orders", PAUSED)
    await places.targets.save("größe 💰", PAUSED)
    await places.targets.save("orders", STARTED)
    assert await places.restarted.load() == await places.targets.load() == {"orders": STARTED, "größe 💰": PAUSED}
    await places.restarted.save("orders", PAUSED)
    assert (await places.restarted.load())["orders"] == PAUSED


@conforms
async def test_every_state_and_every_moment_comes_back(places: Places) -> None:
    wanted = {
        f"{state}-{hours}": Target(
            state=state, actor="", at=datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=hours))), reason=""
        )
        for state in TargetState
        for hours in (-11, 0, 14)
    }
    for pipeline, target in wanted.items():
        await places.targets.save(pipeline, target)
    found = await places.restarted.load()
    assert found == wanted
    assert all(target.at.tzinfo is not None for target in found.values())


@conforms
async def test_many_targets_that_are_saved_at_once_are_all_there(places: Places) -> None:
    await asyncio.gather(*(places.targets.save(f"p{number}", PAUSED) for number in range(20)))
    assert await places.restarted.load() == {f"p{number}": PAUSED for number in range(20)}


@conforms
async def test_odd_words_of_an_operator_are_no_reason_not_to_carry_out_what_he_wants(places: Places) -> None:
    odd = Target(state=TargetState.PAUSED, actor="a\x00\ud800nn", at=PAUSED.at, reason="why\x00\udfff" + "é" * 5000)
    await places.targets.save("orders", odd)
    found = (await places.restarted.load())["orders"]
    assert (found.state, found.at) == (TargetState.PAUSED, odd.at)
    assert found.actor.endswith("nn")
    assert (found.reason or "").startswith("why")


@conforms
async def test_what_was_loaded_stays_as_it_was(places: Places) -> None:
    await places.targets.save("orders", PAUSED)
    before = await places.targets.load()
    await places.targets.save("orders", STARTED)
    assert before == {"orders": PAUSED}


@pytest.mark.parametrize("loss", Loss)
@conforms
async def test_a_target_whose_connection_is_lost_was_saved_or_not(stores: StoreWorld, loss: Loss) -> None:
    await stores.targets.save("orders", STARTED)
    async with stores.losing(loss, "save"):
        with pytest.raises(DatabaseUnreachable):
            await stores.targets.save("orders", PAUSED)
    assert await stores.targets.load() == {"orders": PAUSED if loss.is_done else STARTED}
    stores.go_down()
    with pytest.raises(DatabaseUnreachable):
        await stores.targets.load()
    stores.come_up()
    await stores.targets.save("orders", PAUSED)
    assert await stores.other.targets.load() == {"orders": PAUSED}

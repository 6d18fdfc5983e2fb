"""Stages close in reverse, each within its own deadline, whatever the others do."""

from __future__ import annotations

import asyncio

import pytest

from outboxd.runtime.stages import Stages
from outboxd.telemetry.daemon import StageNotClosed
from outboxd.testing.fakes.clock import virtual_time
from tests.unit.runtime.doubles import Recorder


@pytest.mark.fixes("B007")
@virtual_time
async def test_a_stage_that_hangs_or_raises_holds_up_no_other() -> None:
    closed: list[str] = []
    telemetry = Recorder()
    stages = Stages(telemetry)

    async def close(name: str) -> bool:
        closed.append(name)
        return name != "unclean"

    async def hang() -> None:
        closed.append("hangs")
        await asyncio.sleep(3600)

    async def broken() -> None:
        closed.append("broken")
        raise OSError("gone")

    stages.opened("first", lambda: close("first"), seconds=5)
    stages.opened("hangs", hang, seconds=5)
    stages.opened("broken", broken, seconds=5)
    stages.opened("unclean", lambda: close("unclean"), seconds=5)
    stages.opened("last", lambda: close("last"), seconds=5)
    began = asyncio.get_running_loop().time()
    assert await stages.close() == ["unclean", "broken", "hangs"]
    assert asyncio.get_running_loop().time() - began == pytest.approx(5)
    assert closed == ["last", "unclean", "broken", "hangs", "first"]
    reported = [(event.stage, event.reason) for event in telemetry.events if isinstance(event, StageNotClosed)]
    assert reported == [("broken", "OSError: gone"), ("hangs", "not closed within 5 s")]
    assert await stages.close() == []

"""`daemon.state`: what one replica is told, all replicas do, and a later one finds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from outboxd.config import load
from outboxd.lifecycle import PipelineState, TargetState
from outboxd.registry import build_registry
from outboxd.runtime.app import App
from outboxd.runtime.control import Control
from outboxd.runtime.migration import migrate

YAML = """
daemon: {name: shared, state: shop, drain_timeout: 5s}
connections:
  shop: {type: postgres, dsn: "${env:SHARED_DSN}"}
  main: {type: kafka, bootstrap_servers: ["127.0.0.1:9"]}
pipelines:
  outbox: {outbox: {connection: shop}, publish: {connection: main}}
"""


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.05)


async def test_replicas_follow_one_target_and_start_nothing_before_they_know_it(
    postgres_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARED_DSN", postgres_dsn)
    (tmp_path / "all.yaml").write_text(YAML)
    registry = build_registry()
    configuration = load([tmp_path], environ=os.environ, registry=registry)

    async with AsyncExitStack() as replicas:

        async def start() -> Control:
            app = App(configuration, registry=registry)
            control = await app.open()
            replicas.push_async_callback(app.close)
            return control

        def state(control: Control) -> PipelineState:
            return control.supervisor.status("outbox").state

        first, second = await start(), await start()
        await _until(lambda: "outboxd migrate" in (first.supervisor.status("outbox").message or ""))
        assert (state(first), first.supervisor.status("outbox").reason) == (PipelineState.CREATED, "target_unknown")
        await migrate(configuration)
        # The broker is not there: the relay says so instead of RUNNING.
        await _until(lambda: {state(first), state(second)} == {PipelineState.STALLED})
        assert first.supervisor.status("outbox").reason == "broker_unreachable"
        assert first.scope == "all replicas"
        await first.supervisor.set_target("outbox", TargetState.PAUSED, actor="ann", reason="inventory")
        await _until(lambda: {state(first), state(second)} == {PipelineState.PAUSED})
        assert second.supervisor.status("outbox").message == "paused by ann: inventory"
        third = await start()
        await _until(lambda: state(third) is not PipelineState.CREATED)
        assert state(third) is PipelineState.PAUSED

"""The commands that ask a running daemon: envelopes, exit codes, and what people read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from typer.testing import CliRunner, Result

from outboxd.cli.app import build_app
from outboxd.errors import PipelineStopped
from outboxd.http.server import HttpServer
from outboxd.lifecycle import PipelineState
from tests.integration.http.doubles import Daemon, letter


class Command:
    """Runs `outboxd ARGUMENTS --url ...` beside the daemon's event loop."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def __call__(self, *arguments: str) -> Result:
        return await asyncio.to_thread(CliRunner().invoke, build_app(), [*arguments, "--url", self.url])

    async def json(self, *arguments: str) -> Any:
        envelope = json.loads((await self(*arguments, "--json")).stdout)
        assert set(envelope) == {"command", "ok", "result", "error"}
        return envelope


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    made = Daemon()
    await made.world.open()
    yield made
    await made.world.supervisor.close(5)


@pytest.fixture
async def outboxd(daemon: Daemon) -> AsyncIterator[Command]:
    server = HttpServer(host="127.0.0.1", port=0)
    await server.open(daemon.control)
    yield Command(f"http://127.0.0.1:{server.port}")
    await server.close()


async def test_status_is_a_table_for_people_and_the_list_for_machines(outboxd: Command, daemon: Daemon) -> None:
    daemon.world.last().ending.set_result(PipelineStopped("rule 2 said stop"))
    async with asyncio.timeout(5):
        while daemon.world.state() is not PipelineState.FAILED:
            await asyncio.sleep(0.01)
    shown = await outboxd("status")
    assert shown.exit_code == 0
    assert "FAILED" in shown.stdout
    assert "pipeline_stopped: rule 2 said stop" in shown.stdout
    assert "outboxd restart orders" in shown.stderr
    envelope = await outboxd.json("status")
    assert (envelope["command"], envelope["ok"]) == ("status", True)
    assert [(each["name"], each["state"]) for each in envelope["result"]] == [
        ("orders", "FAILED"),
        ("payments", "RUNNING"),
    ]


async def test_pause_and_resume_reach_the_daemon_with_their_reason(outboxd: Command, daemon: Daemon) -> None:
    shown = await outboxd("pause", "orders", "--reason", "inventory")
    assert (shown.exit_code, shown.stdout.partition(";")[0]) == (0, "orders: target paused in this replica")
    target = daemon.world.targets.stored["orders"]
    assert target.reason == "inventory"
    assert "@" in target.actor
    async with asyncio.timeout(5):
        while daemon.world.state() is not PipelineState.PAUSED:
            await asyncio.sleep(0.01)
    refused = await outboxd.json("restart", "orders")
    assert (refused["ok"], refused["error"]["code"]) == (False, "state_conflict")
    assert (await outboxd("resume", "orders")).exit_code == 0
    assert (await outboxd("stop", "payments")).exit_code == 0


async def test_letters_are_listed_shown_and_replayed(outboxd: Command, daemon: Daemon) -> None:
    daemon.shop.letters = [letter(1), letter(2)]
    listed = await outboxd("letters", "list", "--status", "new", "--pipeline", "orders")
    assert listed.exit_code == 0, listed.output
    assert "orders.status_updated-0@1" in listed.stdout
    assert "order-17" in listed.stdout
    shown = await outboxd("letters", "show", str(UUID(int=1)))
    assert '{"total": 10}' in shown.stdout
    assert "outboxd letters replay" in shown.stderr
    job = (await outboxd.json("letters", "replay", str(UUID(int=1)), str(UUID(int=2))))["result"]
    assert job["total"] == 2
    followed = await outboxd("replays", "show", job["id"])
    assert "WAITING" in followed.stdout
    assert "no owner" in followed.stdout


@pytest.mark.parametrize(
    ("arguments", "exit_code", "code"),
    [
        (("pause", "nobody"), 2, "pipeline_unknown"),
        (("letters", "show", str(UUID(int=9))), 2, "letter_unknown"),
        (("letters", "list", "--status", "LOST"), 2, "usage"),
        (("letters", "list", "--since", "yesterday"), 2, "usage"),
    ],
)
async def test_bad_input_ends_with_2_and_says_what_to_do(
    outboxd: Command, arguments: tuple[str, ...], exit_code: int, code: str
) -> None:
    result = await outboxd(*arguments, "--json")
    error = json.loads(result.stdout)["error"]
    assert (result.exit_code, error["code"]) == (exit_code, code)
    assert error["suggestion"]


async def test_a_database_that_is_away_ends_with_3(outboxd: Command, daemon: Daemon) -> None:
    daemon.shop.is_down = True
    result = await outboxd("letters", "list", "--json")
    assert (result.exit_code, json.loads(result.stdout)["error"]["code"]) == (3, "database_unreachable")


async def test_no_daemon_ends_with_3_and_names_the_way_to_one() -> None:
    for url in ("http://127.0.0.1:9", "file:///etc/passwd", "nonsense"):
        result = await Command(url)("status", "--json")
        error = json.loads(result.stdout)["error"]
        assert (result.exit_code, error["code"]) == (3, "daemon_unreachable")
        assert "outboxd run" in error["suggestion"]

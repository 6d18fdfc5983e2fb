"""The API over scripted pipelines: what it answers, and that bad input is never the daemon's fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import httpx
import pytest

from outboxd.http.api import create_api
from outboxd.lifecycle import PipelineState
from outboxd.pipeline.run import Health, Stall
from outboxd.telemetry.audit import ReplayRequested, TargetChanged
from tests.integration.http.doubles import Daemon, letter
from tests.unit.runtime.doubles import World


@pytest.fixture
async def daemon() -> AsyncIterator[Daemon]:
    made = Daemon()
    await made.world.open()
    yield made
    await made.world.supervisor.close(5)


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_api(daemon.control), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8083") as made:
        yield made


async def _until(world: World, state: PipelineState, name: str = "orders") -> None:
    async with asyncio.timeout(5):
        while world.state(name) is not state:
            await asyncio.sleep(0.01)


async def test_the_status_has_exactly_its_nine_fields(client: httpx.AsyncClient, daemon: Daemon) -> None:
    daemon.world.last().now = Health(is_ready=True, detail={"lag": 3, "rate": float("nan"), "key": b"x"})
    await asyncio.sleep(1.1)
    answer = await client.get("/v1/pipelines/orders/status")
    assert answer.status_code == 200
    body = answer.json()
    assert list(body) == ["name", "kind", "target", "state", "reason", "message", "since", "restarts", "detail"]
    assert (body["name"], body["kind"], body["target"], body["state"]) == ("orders", "consumer", "started", "RUNNING")
    assert body["detail"] == {"lag": 3, "rate": "nan", "key": "b'x'"}
    listed = (await client.get("/v1/pipelines")).json()
    assert [each["name"] for each in listed["items"]] == ["orders", "payments"]
    assert listed["scope"] == "this replica"


async def test_pause_and_resume_carry_who_and_why(client: httpx.AsyncClient, daemon: Daemon) -> None:
    answer = await client.put(
        "/v1/pipelines/orders/pause", json={"reason": "inventory"}, headers={"outboxd-actor": "ann@laptop"}
    )
    assert answer.status_code == 202
    assert answer.json()["target"]["state"] == "paused"
    await _until(daemon.world, PipelineState.PAUSED)
    body = (await client.get("/v1/pipelines/orders")).json()
    assert (body["target"]["actor"], body["target"]["reason"]) == ("ann@laptop", "inventory")
    assert (await client.post("/v1/pipelines/orders/restart")).status_code == 409
    assert (await client.put("/v1/pipelines/orders/resume")).status_code == 202
    await _until(daemon.world, PipelineState.RUNNING)
    assert (await client.post("/v1/pipelines/orders/restart")).status_code == 202
    assert (await client.put("/v1/pipelines/orders/stop")).status_code == 202
    await _until(daemon.world, PipelineState.STOPPED)
    audit = [event.actor for event in daemon.world.telemetry.events if isinstance(event, TargetChanged)]
    assert audit == ["ann@laptop", "http 127.0.0.1", "http 127.0.0.1"]


async def test_liveness_knows_the_supervisor_only_and_readiness_lists_the_degraded(
    client: httpx.AsyncClient, daemon: Daemon
) -> None:
    assert (await client.get("/healthz/live")).status_code == 200
    daemon.world.last().now = Health(is_ready=True, stall=Stall(reason="broker_unreachable", message="gone"))
    await _until(daemon.world, PipelineState.STALLED)
    answer = await client.get("/healthz/ready")
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "degraded": [{"name": "orders", "state": "STALLED", "reason": "broker_unreachable"}],
    }
    assert (await client.get("/healthz/live")).status_code == 200
    daemon.is_draining = True
    assert (await client.get("/healthz/ready")).status_code == 503
    assert (await client.get("/healthz/live")).status_code == 200


@pytest.mark.fixes("B061")
async def test_a_dead_supervisor_turns_liveness_red(client: httpx.AsyncClient, daemon: Daemon) -> None:
    tasks = daemon.world.supervisor._tasks
    (task,) = [task for actor, task in tasks.items() if actor.name == "payments"]
    task.cancel()
    await asyncio.wait({task})
    answer = await client.get("/healthz/live")
    assert (answer.status_code, answer.json()) == (503, {"status": "supervisor_dead"})


async def test_a_daemon_that_is_still_starting_is_not_ready() -> None:
    daemon = Daemon()
    transport = httpx.ASGITransport(app=create_api(daemon.control))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = await client.get("/healthz/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")


async def test_metrics_are_prometheus_text_without_scope_labels(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'outboxd_pipeline_state{kind="consumer",pipeline="orders",state="CREATED"} 1.0' in answer.text
    assert 'outboxd_pipeline_restarts_total{pipeline="orders"} 0.0' in answer.text
    assert "outboxd_build_info" in answer.text
    assert "otel_scope" not in answer.text


async def test_letters_are_listed_over_all_homes_page_by_page(client: httpx.AsyncClient, daemon: Daemon) -> None:
    daemon.shop.letters = [letter(n) for n in (3, 2, 1)]
    daemon.bank.letters = [letter(n, pipeline="payments") for n in (12, 11)]
    seen: list[int] = []
    cursor: str | None = None
    for _ in range(10):
        parameters = {"limit": "2"} if cursor is None else {"limit": "2", "cursor": cursor}
        page = (await client.get("/v1/letters", params=parameters)).json()
        seen += [each["offset"] for each in page["items"]]
        assert len(page["items"]) <= 2
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [3, 2, 1, 12, 11]
    only = (await client.get("/v1/letters", params={"pipeline": "payments"})).json()
    assert [each["offset"] for each in only["items"]] == [12, 11]
    assert (await client.get("/v1/letters", params={"pipeline": "orders-outbox"})).json() == {"items": [], "next": None}


async def test_a_letter_shows_bytes_as_base64_and_as_text_where_they_are(
    client: httpx.AsyncClient, daemon: Daemon
) -> None:
    daemon.bank.letters = [letter(5, value=b"\xff\x00")]
    body = (await client.get(f"/v1/letters/{UUID(int=5)}")).json()
    assert (body["key"], body["key_text"]) == ("b3JkZXItMTc=", "order-17")
    assert (body["value"], body["value_text"]) == ("/wA=", None)
    assert body["headers"] == [
        {"name": "event", "value": "Y3JlYXRlZA==", "text": "created"},
        {"name": "event", "value": None, "text": None},
        {"name": "bin", "value": "/w==", "text": None},
    ]
    assert body["status"] == "NEW"


async def test_a_replay_is_made_once_per_letter_and_can_be_asked_after(
    client: httpx.AsyncClient, daemon: Daemon
) -> None:
    daemon.shop.letters = [letter(1), letter(2)]
    ids = [str(UUID(int=1)), str(UUID(int=2)), str(UUID(int=1))]
    answer = await client.post("/v1/replays", json={"select": {"ids": ids}, "mode": "in_place"})
    assert answer.status_code == 201
    job = answer.json()
    assert (job["total"], job["state"], job["letters"]) == (2, "WAITING", ids[:2])
    assert (await client.get(f"/v1/replays/{job['id']}")).json() == job
    assert [e.letter_ids for e in daemon.world.telemetry.events if isinstance(e, ReplayRequested)] == [
        [UUID(int=1), UUID(int=2)]
    ]
    daemon.shop.resolved.add(UUID(int=1))
    refused = await client.post("/v1/replays", json={"select": {"ids": ids}})
    assert (refused.status_code, refused.json()["code"]) == (409, "move_refused")


async def test_letters_of_two_homes_need_two_replays(client: httpx.AsyncClient, daemon: Daemon) -> None:
    daemon.shop.letters, daemon.bank.letters = [letter(1)], [letter(2)]
    answer = await client.post("/v1/replays", json={"select": {"ids": [str(UUID(int=1)), str(UUID(int=2))]}})
    assert (answer.status_code, answer.json()["code"]) == (409, "move_refused")
    assert daemon.shop.jobs == daemon.bank.jobs == {}


async def test_a_home_that_cannot_be_asked_never_makes_a_letter_unknown(
    client: httpx.AsyncClient, daemon: Daemon
) -> None:
    daemon.shop.is_down = True
    daemon.bank.letters = [letter(2)]
    assert (await client.get(f"/v1/letters/{UUID(int=2)}")).status_code == 200
    answer = await client.get(f"/v1/letters/{UUID(int=1)}")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unreachable")


@pytest.mark.parametrize(
    ("method", "path", "arguments", "status", "code"),
    [
        ("GET", "/v1/pipelines/nobody", {}, 404, "pipeline_unknown"),
        ("GET", "/v1/pipelines/%ff%00/status", {}, 404, "pipeline_unknown"),
        ("PUT", "/v1/pipelines/nobody/pause", {}, 404, "pipeline_unknown"),
        ("POST", "/v1/pipelines/nobody/restart", {}, 404, "pipeline_unknown"),
        ("GET", f"/v1/letters/{UUID(int=99)}", {}, 404, "letter_unknown"),
        ("GET", f"/v1/replays/{UUID(int=99)}", {}, 404, "letter_unknown"),
        ("GET", "/v1/letters/17", {}, 422, "request_invalid"),
        ("GET", "/v1/letters", {"params": {"limit": "0"}}, 422, "request_invalid"),
        ("GET", "/v1/letters", {"params": {"limit": "1e9"}}, 422, "request_invalid"),
        ("GET", "/v1/letters", {"params": {"status": "LOST"}}, 422, "request_invalid"),
        ("GET", "/v1/letters", {"params": {"colour": "red"}}, 422, "request_invalid"),
        ("GET", "/v1/letters", {"params": {"topic": "a\x00b"}}, 422, "request_invalid"),
        ("GET", "/v1/letters", {"params": {"since": "2026-05-01T00:00:00"}}, 422, "request_invalid"),
        ("GET", "/v1/letters", {"params": {"cursor": "elsewhere:3"}}, 422, "cursor_invalid"),
        ("GET", "/v1/letters", {"params": {"cursor": "shop-db:x"}}, 422, "cursor_invalid"),
        ("GET", "/v1/letters", {"params": {"pipeline": "nobody"}}, 404, "pipeline_unknown"),
        ("POST", "/v1/replays", {"json": {}}, 422, "request_invalid"),
        ("POST", "/v1/replays", {"json": {"select": {"ids": []}}}, 422, "request_invalid"),
        ("POST", "/v1/replays", {"json": {"select": {"ids": ["x"]}, "mode": "in_place"}}, 422, "request_invalid"),
        ("POST", "/v1/replays", {"json": {"select": {"ids": [str(UUID(int=1))]}, "mode": "x"}}, 422, "request_invalid"),
        ("POST", "/v1/replays", {"content": b"{"}, 422, "request_invalid"),
        ("PUT", "/v1/pipelines/orders/pause", {"content": b'{"reason": "\\ud800"}'}, 422, "request_invalid"),
        ("PUT", "/v1/pipelines/orders/pause", {"content": b'{"reason": "a\\u0000b"}'}, 422, "request_invalid"),
        ("PUT", "/v1/pipelines/orders/pause", {"content": b'"\\ud800"'}, 422, "request_invalid"),
        ("PUT", "/v1/pipelines/orders/pause", {"content": b"\xff"}, 400, "bad_request"),
        ("DELETE", "/v1/pipelines/orders", {}, 405, "method_not_allowed"),
        ("GET", "/nowhere", {}, 404, "not_found"),
        ("GET", "/", {"headers": {"host": "evil.example:8083"}}, 403, "not_local"),
        ("GET", "/", {"headers": {"origin": "https://evil.example"}}, 403, "not_local"),
    ],
)
async def test_bad_input_gets_a_problem_document_and_never_a_5xx(
    *, client: httpx.AsyncClient, method: str, path: str, arguments: dict[str, object], status: int, code: str
) -> None:
    if "content" in arguments:
        arguments = arguments | {"headers": {"content-type": "application/json"}}
    answer = await client.request(method, path, **arguments)  # type: ignore[arg-type]  # a table of keyword arguments
    body = answer.json()
    assert (answer.status_code, body["code"]) == (status, code), body
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "code", "suggestion"} == set(body)


async def test_an_unreachable_state_database_is_503_and_changes_nothing(
    client: httpx.AsyncClient, daemon: Daemon
) -> None:
    daemon.world.targets.is_down = True
    answer = await client.put("/v1/pipelines/orders/pause")
    assert (answer.status_code, answer.json()["code"]) == (503, "database_unreachable")
    assert (await client.get("/v1/pipelines/orders/status")).json()["target"] == "started"


async def test_what_is_told_of_the_daemon_holds_no_secret(client: httpx.AsyncClient) -> None:
    assert (await client.get("/")).json() == {"name": "shop", "version": "0.1.0", "instance": "shop-1"}
    assert (await client.get("/v1/plugins")).json()["items"][0]["name"] == "python"
    shown = (await client.get("/v1/config")).json()
    assert shown["configuration"] == {"connections": {"shop-db": {"dsn": "${env:SHOP_DSN}"}}}
    assert (shown["reload"]["mode"], shown["reload"]["is_successful"]) == ("off", True)
    document = (await client.get("/openapi.json")).json()
    assert "/v1/pipelines/{pipeline}/status" in document["paths"]

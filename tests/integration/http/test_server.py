"""The server on a real socket: it serves, it ends in time, and a taken port says what to do."""

from __future__ import annotations

import asyncio
import signal

import httpx
import pytest

from outboxd.config.process_settings import HttpSettings
from outboxd.http import server as server_module
from outboxd.http.server import HttpServer, PortUnavailable, servers
from tests.integration.http.doubles import Daemon


async def test_it_answers_on_a_port_of_the_systems_choice_and_leaves_signals_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    server = HttpServer(host="127.0.0.1", port=0)
    await server.open(Daemon().control)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert (await client.get("/")).json()["name"] == "shop"
    await server.close()
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{server.port}/")


async def test_a_port_in_use_names_the_port_and_the_remedy() -> None:
    first = HttpServer(host="127.0.0.1", port=0)
    await first.open(Daemon().control)
    second = HttpServer(host="127.0.0.1", port=first.port)
    with pytest.raises(PortUnavailable) as caught:
        await second.open(Daemon().control)
    assert str(first.port) in str(caught.value)
    assert "OUTBOXD_HTTP__PORT" in (caught.value.suggestion or "")
    await second.close()
    await first.close()


@pytest.mark.fixes("B007")
async def test_a_client_that_never_finishes_its_request_does_not_hold_the_end_up() -> None:
    server = HttpServer(host="127.0.0.1", port=0)
    await server.open(Daemon().control)
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"PUT /v1/pipelines/orders/pause HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    await writer.drain()
    await asyncio.sleep(0.1)
    async with asyncio.timeout(5):
        await server.close()
    writer.close()


async def test_the_management_port_serves_probes_and_metrics_to_anybody_and_nothing_else() -> None:
    settings = HttpSettings.model_validate({"port": 0, "management": {"port": 0}})
    api, management = servers(settings)
    for server in (api, management):
        await server.open(Daemon().control)
    assert (api.host, management.host) == ("127.0.0.1", "0.0.0.0")
    open_paths = ("/healthz/live", "/healthz/ready", "/metrics")
    closed_paths = ("/", "/v1/pipelines", "/v1/config", "/docs", "/openapi.json")
    # As Prometheus asks: by a name that is none of the loopback.
    url, headers = f"http://127.0.0.1:{management.port}", {"host": "outboxd-0.outboxd:8084"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as client:
        answers = [(await client.get(path)).status_code for path in (*open_paths, *closed_paths)]
        answers.append((await client.put("/v1/pipelines/orders/pause", json={})).status_code)
    assert answers == [503, 503, 200, *[404] * 6]  # its supervisor was never started
    for server in (api, management):
        await server.close()


async def test_a_management_port_in_use_names_its_own_setting() -> None:
    (api,) = servers(HttpSettings(port=0))
    await api.open(Daemon().control)
    taken = HttpSettings.model_validate({"port": 0, "management": {"host": "127.0.0.1", "port": api.port}})
    with pytest.raises(PortUnavailable) as caught:
        await servers(taken)[1].open(Daemon().control)
    assert "http.management.port or OUTBOXD_HTTP__MANAGEMENT__PORT" in (caught.value.suggestion or "")
    await api.close()


async def test_more_connections_than_it_keeps_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_CONNECTIONS", 3)
    server = HttpServer(host="127.0.0.1", port=0)
    await server.open(Daemon().control)
    idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert (await client.get("/metrics")).status_code == 503
    for _, writer in idle:
        writer.close()
        await writer.wait_closed()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
        assert (await client.get("/metrics")).status_code == 200
    await server.close()

"""The server on a real socket: it serves, it ends in time, and a taken port says what to do."""

from __future__ import annotations

import asyncio
import signal

import httpx
import pytest

from outboxd.http.server import HttpServer, PortUnavailable
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

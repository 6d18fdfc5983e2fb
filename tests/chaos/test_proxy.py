"""The proxy does to a connection what a network does, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outboxd.testing.chaos import Flow, Proxy

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PATIENCE = 5.0
A_WHILE = 0.1  # long enough to see that nothing comes


class Echo:
    """A server that answers each line with itself, and remembers what it got."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ends: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.got.append(line)
                writer.write(line)
                await writer.drain()
            self.ends.append("closed")
        except ConnectionError:
            self.ends.append("reset")
        finally:
            writer.close()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest_asyncio.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with Proxy(target_port=server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()
    await asyncio.sleep(0)


async def _connect(proxy: Proxy) -> Streams:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def _ask(streams: Streams, line: bytes) -> bytes:
    reader, writer = streams
    writer.write(line)
    async with asyncio.timeout(PATIENCE):
        return await reader.readline()


async def _says_nothing(streams: Streams) -> bool:
    try:
        async with asyncio.timeout(A_WHILE):
            await streams[0].read(1)
    except TimeoutError:
        return True
    return False


async def _is_reset(streams: Streams) -> bool:
    """True when the connection ends with RST, not in order."""
    try:
        async with asyncio.timeout(PATIENCE):
            await streams[0].read()
    except ConnectionResetError:
        return True
    return False


async def _until(seen: list[str] | list[bytes], count: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while len(seen) < count:
            await asyncio.sleep(0.01)


async def test_it_passes_both_ways_and_passes_an_end_on(proxy: Proxy, echo: Echo) -> None:
    streams = await _connect(proxy)
    assert await _ask(streams, b"one\n") == b"one\n"
    streams[1].write_eof()
    async with asyncio.timeout(PATIENCE):
        assert await streams[0].read() == b""
    await _until(echo.ends, 1)
    assert echo.ends == ["closed"]
    streams[1].close()


async def test_a_blackhole_keeps_connections_and_gives_everything_back_in_order(proxy: Proxy, echo: Echo) -> None:
    old = await _connect(proxy)
    assert await _ask(old, b"one\n") == b"one\n"
    proxy.blackhole()
    new = await _connect(proxy)
    for streams in (old, new):
        streams[1].write(b"two\n")
        streams[1].write(b"three\n")
        assert await _says_nothing(streams)
    assert echo.got == [b"one\n"]
    await proxy.restore()
    for streams in (old, new):
        async with asyncio.timeout(PATIENCE):
            assert [await streams[0].readline(), await streams[0].readline()] == [b"two\n", b"three\n"]
        streams[1].close()


async def test_lost_answers_are_of_requests_that_were_carried_out(proxy: Proxy, echo: Echo) -> None:
    streams = await _connect(proxy)
    proxy.blackhole(Flow.ANSWERS)
    streams[1].write(b"one\n")
    await _until(echo.got, 1)
    assert await _says_nothing(streams)
    await proxy.cut()
    await proxy.restore()
    assert await _is_reset(streams)
    assert echo.got == [b"one\n"]
    streams[1].close()


async def test_lost_requests_do_not_arrive(proxy: Proxy, echo: Echo) -> None:
    streams = await _connect(proxy)
    proxy.blackhole(Flow.REQUESTS)
    streams[1].write(b"one\n")
    assert await _says_nothing(streams)
    await proxy.cut()
    await proxy.restore()
    assert await _is_reset(streams)
    assert echo.got == []
    streams[1].close()


async def test_refused_means_reset_now_and_refused_until_restored(proxy: Proxy, echo: Echo) -> None:
    streams = await _connect(proxy)
    assert await _ask(streams, b"one\n") == b"one\n"
    await proxy.refuse()
    assert await _is_reset(streams)
    streams[1].close()
    with pytest.raises(ConnectionRefusedError):
        await _connect(proxy)
    await proxy.restore()
    again = await _connect(proxy)
    assert await _ask(again, b"two\n") == b"two\n"
    again[1].close()


async def test_a_cut_falls_into_the_middle_of_a_message(proxy: Proxy, echo: Echo) -> None:
    streams = await _connect(proxy)
    proxy.cut_after(7, Flow.ANSWERS)
    assert await _ask(streams, b"one\n") == b"one\n"
    streams[1].write(b"two\n")
    async with asyncio.timeout(PATIENCE):
        assert await streams[0].readexactly(3) == b"two"
    assert await _is_reset(streams)
    await _until(echo.got, 2)
    streams[1].close()
    again = await _connect(proxy)
    assert await _ask(again, b"three\n") == b"three\n"
    again[1].close()


async def test_a_delay_keeps_the_order_and_loses_nothing(proxy: Proxy) -> None:
    streams = await _connect(proxy)
    proxy.delay(A_WHILE)
    streams[1].write(b"one\n")
    streams[1].write(b"two\n")
    async with asyncio.timeout(PATIENCE):
        assert [await streams[0].readline(), await streams[0].readline()] == [b"one\n", b"two\n"]
    streams[1].close()


async def test_a_closed_proxy_leaves_no_task_and_no_listener(echo: Echo) -> None:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    proxy = await Proxy(target_port=server.sockets[0].getsockname()[1]).start()
    streams = await _connect(proxy)
    assert await _ask(streams, b"one\n") == b"one\n"
    proxy.blackhole()
    await proxy.close()
    assert proxy.connections == 0
    await _until(echo.ends, 1)
    await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("proxy")] == []
    with pytest.raises(ConnectionRefusedError):
        await _connect(proxy)
    streams[1].close()
    server.close()


async def test_a_target_that_is_away_is_a_reset(proxy: Proxy) -> None:
    async with Proxy(target_port=1) as nowhere:
        streams = await _connect(nowhere)
        assert await _is_reset(streams)
        streams[1].close()

"""A TCP proxy on 127.0.0.1 that breaks what passes through it: refuses, delays, cuts, or keeps everything to itself."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Final, Self

from outboxd.dev.port_lease import PortLease

__all__ = ["Flow", "Proxy"]

_PIECE: Final = 1 << 16
_CONNECT_DEADLINE: Final = 5.0
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time


class Flow(Enum):
    """A direction through the proxy."""

    REQUESTS = "requests"
    """From the client to the server."""
    ANSWERS = "answers"
    """From the server to the client: what is held here was done, and nobody is told."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Lane:
    """One direction, of all connections together."""

    is_open: asyncio.Event = field(default_factory=asyncio.Event)
    delay: float = 0.0
    cut_after: int | None = None

    def __post_init__(self) -> None:
        self.is_open.set()


@dataclass(slots=True, kw_only=True, eq=False)
class _Link:
    """One connection: the client's end and the server's."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    task: asyncio.Task[None] | None = None


class Proxy:
    """Stands before a server on 127.0.0.1 and is switched while it runs.

        async with Proxy(target_port=server.port) as proxy:
            proxy.blackhole(Flow.ANSWERS)   # requests arrive and are done, answers do not come back
            await proxy.restore()           # what was held flows on, as after a network's recovery

    It keeps the order of bytes and never invents or drops one in the middle of a connection, since TCP does not: bytes
    that are lost are lost with their connection (`cut`). It runs in the caller's event loop. For Kafka use
    `ChaosStack`, or `KafkaServer.listen_for_proxy`: a client is told the broker's own address and would go around it.
    """

    def __init__(self, *, target_port: int, name: str = "proxy") -> None:
        self.name = name
        self.target_port = target_port
        self._lease = PortLease.acquire()
        self._lanes = {flow: _Lane() for flow in Flow}
        self._links: dict[_Link, None] = {}
        self._listener: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Where clients connect; the same for as long as this object lives."""
        return self._lease.port

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._links)

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Listen. Raises OSError when the port is taken."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port, limit=_PIECE)
        return self

    async def close(self) -> None:
        """Reset every connection, stop listening and give the port back; returns when no task is left."""
        await self.refuse()
        self._lease.release()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- faults ------------------------------------------------------------------------------------------------------

    async def restore(self) -> None:
        """End every fault: listen, and let what was held flow on."""
        for lane in self._lanes.values():
            lane.delay, lane.cut_after = 0.0, None
            lane.is_open.set()
        await self.start()

    async def refuse(self) -> None:
        """As if the server's process were gone: open connections are reset, new ones refused, until `restore`."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        await self.cut()

    def blackhole(self, *flows: Flow) -> None:
        """Pass nothing (in these directions only, when given) until `restore`.

        Connections stay open and new ones are taken, and nobody is told anything. What was sent meanwhile arrives
        afterwards, unless the connection is `cut` first.
        """
        for flow in flows or Flow:
            self._lanes[flow].is_open.clear()

    def delay(self, seconds: float, *flows: Flow) -> None:
        """Hold each piece of up to 64 KiB back for ``seconds`` (in these directions only, when given)."""
        for flow in flows or Flow:
            self._lanes[flow].delay = seconds

    async def cut(self) -> None:
        """Reset every connection now, both ends; what the proxy holds of it is lost. New ones are taken."""
        # One that was just accepted may come while others are reset; it is another connection, and stays.
        links = list(self._links)
        for link in links:
            if link.task is not None:
                link.task.cancel()
        tasks = [link.task for link in links if link.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def cut_after(self, size: int, flow: Flow) -> None:
        """Reset the connection on which the next ``size`` bytes in this direction have passed: in mid-message."""
        self._lanes[flow].cut_after = size

    # -- a connection ------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(client=writer, task=asyncio.current_task())
        self._links[link] = None
        is_orderly = False
        try:
            await self._pass(reader, link)
            is_orderly = True
        except (OSError, asyncio.CancelledError):
            pass  # cancelled by `cut` only: the stream's own callback has no other owner
        finally:
            del self._links[link]
            for end in (link.client, link.server):
                if end is not None:
                    end.close() if is_orderly else _reset(end)

    async def _pass(self, reader: asyncio.StreamReader, link: _Link) -> None:
        async with asyncio.timeout(_CONNECT_DEADLINE):
            answers, link.server = await asyncio.open_connection("127.0.0.1", self.target_port, limit=_PIECE)
        pumps = [
            asyncio.create_task(self._pump(reader, link.server, Flow.REQUESTS), name=f"{self.name}: requests"),
            asyncio.create_task(self._pump(answers, link.client, Flow.ANSWERS), name=f"{self.name}: answers"),
        ]
        try:
            # An end that was closed in order is passed on as one; an error ends the whole connection.
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_EXCEPTION)
            for pump in done:
                pump.result()
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, flow: Flow) -> None:
        lane = self._lanes[flow]
        while piece := await source.read(_PIECE):
            if lane.delay:
                await asyncio.sleep(lane.delay)
            await lane.is_open.wait()
            if lane.cut_after is not None:
                await self._cut_within(piece, sink, lane)
            else:
                sink.write(piece)
            await sink.drain()
        await lane.is_open.wait()
        with suppress(OSError, RuntimeError):
            sink.write_eof()

    async def _cut_within(self, piece: bytes, sink: asyncio.StreamWriter, lane: _Lane) -> None:
        assert lane.cut_after is not None
        passed, lane.cut_after = piece[: lane.cut_after], lane.cut_after - len(piece)
        sink.write(passed)
        if lane.cut_after > 0:
            return
        lane.cut_after = None
        await sink.drain()
        await asyncio.sleep(0.02)  # let the other side read the half that it got
        raise ConnectionResetError("cut")


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):  # it is closed already
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()

"""A proxy before Postgres that reads its protocol: it loses a request or an answer, or delivers a request late."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Self
from urllib.parse import urlsplit

__all__ = ["Break", "Wire"]

_PARSE, _BIND, _SYNC = b"P", b"B", b"S"
_DONE, _READY, _IDLE = b"C", b"Z", b"I"
_CANCEL: Final = 80877102
"""The code of a cancel request, which is a connection of its own."""


class Break(Enum):
    """What befalls the next statement that is looked for."""

    REQUEST = auto()
    """The connection breaks before the statement reaches the server."""
    ANSWER = auto()
    """The statement, and its transaction, are done; the connection breaks before the answer reaches the client."""
    LATE = auto()
    """The connection breaks; the statement reaches the server when `Wire.deliver` is called."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Link:
    """One connection. ``is_met`` when the statement that is looked for was prepared on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server_reader: asyncio.StreamReader
    server_writer: asyncio.StreamWriter
    is_met: bool = False
    held: bytearray = field(default_factory=bytearray)
    is_held: bool = False
    """The client is gone; what it asked last waits in ``held``."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    def abort(self) -> None:
        self.writer.transport.abort()
        if not self.is_held:
            self.server_writer.transport.abort()


class Wire:
    """Stands before one database. Connections pass through it as they are, until it is told otherwise.

    A statement is found by a piece of its SQL. It has arguments, so that it is prepared before it runs: it is broken
    between the two.
    """

    def __init__(self, dsn: str) -> None:
        self._upstream = urlsplit(dsn)
        self._server: asyncio.Server | None = None
        self._links: list[_Link] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._armed: tuple[Break, bytes] | None = None
        self._is_down = False

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.is_held = False
            link.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def dsn(self) -> str:
        """The database's address through the proxy."""
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        address = self._upstream
        netloc = f"{address.username}:{address.password}@127.0.0.1:{port}"
        return address._replace(netloc=netloc, query="sslmode=disable").geturl()

    @property
    def is_armed(self) -> bool:
        """Whether the statement that is to break has not come yet."""
        return self._armed is not None

    def arm(self, how: Break, statement: bytes) -> None:
        """Break the connection of the next statement that has these bytes in it."""
        self._armed = (how, statement)

    async def deliver(self) -> None:
        """Let what was held reach the server, and wait until it is done."""
        for link in [link for link in self._links if link.is_held]:
            link.server_writer.write(bytes(link.held))
            await link.answered.wait()
            link.is_held = False
            link.abort()

    def go_down(self) -> None:
        """Break every connection, and refuse new ones."""
        self._is_down = True
        for link in self._links:
            link.abort()

    def come_up(self) -> None:
        """Take connections again."""
        self._is_down = False

    # -- one connection

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        link = _Link(reader=reader, writer=writer, server_reader=there, server_writer=back)
        self._links.append(link)
        for work in (self._requests(link), self._answers(link)):
            task = asyncio.create_task(self._until_broken(link, work))
            self._tasks.add(task)

    async def _until_broken(self, link: _Link, work: Coroutine[object, object, None]) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await work
        link.abort()

    async def _requests(self, link: _Link) -> None:
        opening = await link.reader.readexactly(8)
        length, code = struct.unpack("!II", opening)
        link.server_writer.write(opening + await link.reader.readexactly(length - 8))
        if code == _CANCEL:
            await link.server_reader.read()
            return
        while True:
            kind, message = await _message(link.reader)
            if self._armed is not None and kind == _PARSE:
                link.is_met = self._armed[1] in message  # the driver's own questions come in between
            if link.is_met and kind == _BIND and self._armed is not None and self._armed[0] is not Break.ANSWER:
                await self._break_request(link, message)
                return
            link.server_writer.write(message)
            await link.server_writer.drain()

    async def _break_request(self, link: _Link, bound: bytes) -> None:
        assert self._armed is not None
        how, self._armed = self._armed[0], None
        link.held += bound
        kind = _BIND
        while kind != _SYNC:
            kind, message = await _message(link.reader)
            link.held += message
        link.is_held = how is Break.LATE

    async def _answers(self, link: _Link) -> None:
        done = b""
        while True:
            kind, message = await _message(link.server_reader)
            if link.is_held:
                if kind == _READY:
                    link.answered.set()
                continue
            if link.is_met and (kind == _DONE or done):
                done += message  # whether the client is to see it is open until the server says where it stands
                if kind != _READY:
                    continue
                if message.endswith(_IDLE) and self._armed is not None:  # outside of a transaction: it is committed
                    self._armed = None
                    return
                message, done = done, b""
            link.writer.write(message)
            await link.writer.drain()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)

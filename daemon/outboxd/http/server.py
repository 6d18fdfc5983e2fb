"""The HTTP server inside the daemon's event loop: its own socket, no signal handlers, a bounded end."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

import uvicorn
from fastapi import FastAPI

from outboxd.config.process_settings import HttpSettings
from outboxd.errors import OutboxdError
from outboxd.http.api import create_api, create_management
from outboxd.runtime.control import Control
from outboxd.telemetry.daemon import HttpOpened

__all__ = ["HttpServer", "PortUnavailable", "servers"]

_STOP_DEADLINE: Final = 2.0
_CONNECTIONS: Final = 256
"""More at once are answered with 503: whoever opens them must not take the event loop's memory."""


class PortUnavailable(OutboxdError):
    """The HTTP address cannot be bound."""

    code = "port_unavailable"


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: SIGTERM is the daemon's, and uvicorn would raise it again at its end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def run_on(self, listening: socket.socket) -> None:
        try:
            await self._serve([listening])
        finally:
            self.serving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()


class HttpServer:
    """Serves a `Control` on ``host``:``port``; with port 0 the system chooses, `port` then says which.

    ``application`` makes what is served: the API, or what ``section`` of the configuration is for.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        application: Callable[[Control], FastAPI] = create_api,
        section: str = "http",
    ) -> None:
        self.host = host
        self.port = port
        self._application = application
        self._section = section
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, control: Control) -> None:
        """Bind and serve. Raises PortUnavailable."""
        listening = self._bind()
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._application(control),
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            server_header=False,
            limit_concurrency=_CONNECTIONS,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.run_on(listening), name="http")
        await self._server.serving.wait()
        if self._task.done():
            await self._task
        host = f"[{self.host}]" if ":" in self.host else self.host
        control.telemetry.emit(HttpOpened(url=f"http://{host}:{self.port}", section=self._section))

    async def close(self) -> None:
        """Answer what is being asked, for a second; then cut the rest off."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        _, late = await asyncio.wait({self._task}, timeout=_STOP_DEADLINE)
        if late:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=_STOP_DEADLINE)

    def _bind(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self.host, self.port))
            listening.setblocking(False)
        except OSError as error:
            listening.close()
            what = "is in use by another process" if error.errno == errno.EADDRINUSE else f"cannot be bound: {error}"
            variable = f"OUTBOXD_{self._section}.port".replace(".", "__").upper()
            raise PortUnavailable(
                f"the HTTP address {self.host}:{self.port} {what}",
                suggestion=f"stop that process, or choose another port with {self._section}.port or {variable} (0 for any)",
            ) from error
        return listening


def servers(settings: HttpSettings) -> list[HttpServer]:
    """Everything that is to listen."""
    wanted = [HttpServer(host=settings.host, port=settings.port)]
    if (management := settings.management) is not None:
        wanted.append(
            HttpServer(
                host=management.host, port=management.port, application=create_management, section="http.management"
            )
        )
    return wanted

"""Keeps web pages out: without tokens whoever reaches the loopback is trusted, and a browser reaches it for any page.

A page can send requests to 127.0.0.1 (cross-site) or make its own name point there (DNS rebinding). Both show: in the
header `Origin`, and in a `Host` that is no name of the loopback.
"""

from __future__ import annotations

from http import HTTPStatus
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from outboxd.http.problems import problem

__all__ = ["LoopbackGuard"]

_NAMES: Final = frozenset({"localhost"})


class LoopbackGuard:
    """ASGI middleware that refuses requests which a web page has made."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer 403."""
        if scope["type"] == "http" and not _is_local(Headers(scope=scope)):
            refusal = problem(
                HTTPStatus.FORBIDDEN,
                "not_local",
                "the request names a host or an origin that is not this computer",
                "call it by 127.0.0.1 or localhost, and not from a web page",
            )
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_local(headers: Headers) -> bool:
    host = headers.get("host", "")
    if not _is_loopback(f"//{host}"):
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc == host


def _is_loopback(url: str) -> bool:
    try:
        name = urlsplit(url).hostname
        return name is not None and (name in _NAMES or ip_address(name).is_loopback)
    except ValueError:
        return False

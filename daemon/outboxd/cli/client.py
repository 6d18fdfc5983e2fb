"""Asks a running daemon through its REST API; its problem documents become errors with the same code and remedy."""

from __future__ import annotations

import getpass
import json
import socket
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Annotated, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import ProxyHandler, Request, build_opener

import typer

from outboxd.cli.output import CommandFailed, ExitCode

__all__ = ["DEFAULT_URL", "DaemonClient", "UrlOption"]

DEFAULT_URL: Final = "http://127.0.0.1:8083"
_DEADLINE: Final = 30.0

UrlOption = Annotated[str, typer.Option("--url", envvar="OUTBOXD_URL", help="Where the daemon's REST API answers.")]
"""`--url`, as every command that asks a running daemon has it."""


class DaemonClient:
    """The REST API at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")
        # A proxy of the environment is for the web, not for the loopback.
        self._opener = build_opener(ProxyHandler({}))

    def get(self, *path: str, **query: object) -> Any:
        """The JSON document at the path. Raises CommandFailed."""
        given = {name: str(value) for name, value in query.items() if value is not None}
        return self._ask("GET", path, query=given)

    def put(self, *path: str, body: Mapping[str, object] | None = None) -> Any:
        """Raises CommandFailed."""
        return self._ask("PUT", path, body=body)

    def post(self, *path: str, body: Mapping[str, object] | None = None) -> Any:
        """Raises CommandFailed."""
        return self._ask("POST", path, body=body)

    def _ask(
        self,
        method: str,
        path: tuple[str, ...],
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, object] | None = None,
    ) -> Any:
        where = "/".join(quote(part, safe="") for part in path)
        url = f"{self._url}/{where}" + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        try:
            request = Request(url, data=data, method=method, headers=_headers(data))  # noqa: S310  # the scheme is checked below
            if request.type not in {"http", "https"}:
                raise ValueError("this is no http URL")
            with self._opener.open(request, timeout=_DEADLINE) as answer:
                return json.loads(answer.read())
        except HTTPError as error:
            raise _refused(error) from error
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise CommandFailed(
                f"no daemon answers at {self._url}: {reason}",
                exit_code=ExitCode.ENVIRONMENT,
                code="daemon_unreachable",
                suggestion="start one with `outboxd run -c PATH`, or name its address with --url",
            ) from error


def _headers(data: bytes | None) -> dict[str, str]:
    headers = {"accept": "application/json", "outboxd-actor": _whoami()}
    return headers if data is None else headers | {"content-type": "application/json"}


def _whoami() -> str:
    """Who asks, for the daemon's audit log."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}".encode("ascii", "replace").decode()


def _refused(error: HTTPError) -> CommandFailed:
    try:
        problem = json.loads(error.read())
        message, code, suggestion = problem["detail"], problem["code"], problem.get("suggestion")
    except (ValueError, KeyError, TypeError, OSError):
        return CommandFailed(
            f"what answers at {error.url} is not outboxd (HTTP {error.code})",
            exit_code=ExitCode.ENVIRONMENT,
            code="daemon_unreachable",
            suggestion="check --url",
        )
    exit_code = ExitCode.INPUT if error.code < 500 else ExitCode.FAILED
    if error.code == HTTPStatus.SERVICE_UNAVAILABLE:
        exit_code = ExitCode.ENVIRONMENT
    return CommandFailed(message, exit_code=exit_code, code=code, suggestion=suggestion)

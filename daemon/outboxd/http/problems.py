"""Errors as RFC 9457 problem documents: `application/problem+json` with a stable code and the remedy."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from fastapi import FastAPI, Request
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from outboxd.config import ConfigurationInvalid
from outboxd.errors import (
    ConfigurationError,
    DatabaseError,
    LetterUnknown,
    MoveRefused,
    NotAvailableYet,
    OutboxdError,
    PipelineUnknown,
    StateConflict,
)
from outboxd.runtime.letter_desk import CursorInvalid

__all__ = ["install_problems", "problem"]

_STATUS: Final[tuple[tuple[type[OutboxdError], HTTPStatus], ...]] = (
    (PipelineUnknown, HTTPStatus.NOT_FOUND),
    (LetterUnknown, HTTPStatus.NOT_FOUND),
    (StateConflict, HTTPStatus.CONFLICT),
    (MoveRefused, HTTPStatus.CONFLICT),
    (NotAvailableYet, HTTPStatus.UNPROCESSABLE_ENTITY),
    (DatabaseError, HTTPStatus.SERVICE_UNAVAILABLE),
    (ConfigurationError, HTTPStatus.SERVICE_UNAVAILABLE),
)


def problem(
    status: int, code: str, detail: str, suggestion: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """A problem document."""
    body = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "detail": detail,
        "code": code,
        "suggestion": suggestion,
    }
    return JSONResponse(body, status_code=status, media_type="application/problem+json", headers=dict(headers or {}))


def install_problems(api: FastAPI) -> None:
    """Answer every error of this API with a problem document."""

    @api.exception_handler(OutboxdError)
    async def known(_request: Request, error: OutboxdError) -> JSONResponse:
        status = next((found for kind, found in _STATUS if isinstance(error, kind)), HTTPStatus.INTERNAL_SERVER_ERROR)
        return problem(status, error.code, error.message, error.suggestion)

    @api.exception_handler(ConfigurationInvalid)
    async def configuration(_request: Request, error: ConfigurationInvalid) -> JSONResponse:
        count = "1 problem" if len(error.problems) == 1 else f"{len(error.problems)} problems"
        detail = f"the configuration has {count}, and the one before stays in force:"
        lines = "".join(f"\n{each}" for each in error.problems)
        return problem(
            HTTPStatus.UNPROCESSABLE_ENTITY, error.code, detail + lines, "correct the files; `outboxd check`"
        )

    @api.exception_handler(CursorInvalid)
    async def cursor(_request: Request, error: CursorInvalid) -> JSONResponse:
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "cursor_invalid", str(error))

    @api.exception_handler(TimeoutError)
    async def late(_request: Request, _error: TimeoutError) -> JSONResponse:
        return problem(
            HTTPStatus.SERVICE_UNAVAILABLE, "timed_out", "what this needs did not answer in time", "try again later"
        )

    @api.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        # Places and messages, never the refused input: it may be a secret, and it may not be text at all.
        places = [
            f"{'.'.join(str(part) for part in each['loc'])}: {each['msg']}" for each in jsonable_encoder(error.errors())
        ]
        detail = "; ".join(places).encode("utf-8", "replace").decode()
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, "request_invalid", detail, "the API is described at /docs")

    @api.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> JSONResponse:
        code = HTTPStatus(error.status_code).name.lower()
        return problem(
            error.status_code, code, str(error.detail), "the API is described at /docs", headers=error.headers
        )

    @api.exception_handler(Exception)
    async def unknown(_request: Request, error: Exception) -> JSONResponse:
        return problem(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal", f"{type(error).__name__} in the daemon", "see its log"
        )

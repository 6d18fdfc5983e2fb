"""Probes and the metrics page."""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter, HTTPException, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse

from outboxd.runtime.control import Control

__all__ = ["health_routes"]


def health_routes(control: Control) -> APIRouter:
    """`/healthz/live`, `/healthz/ready` and `/metrics`."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz/live")
    async def live() -> JSONResponse:
        """Whether event loop and supervisor live: that this answers is the loop's half. Never asks a broker."""
        is_alive = control.supervisor.is_alive
        status = HTTPStatus.OK if is_alive else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": "alive" if is_alive else "supervisor_dead"}, status_code=status)

    @routes.get("/healthz/ready")
    async def ready() -> JSONResponse:
        """Whether the daemon does its work. Degraded pipelines are listed and do not unready it."""
        readiness = control.readiness()
        status = HTTPStatus.OK if readiness.is_ready else HTTPStatus.SERVICE_UNAVAILABLE
        return JSONResponse({"status": readiness.state, "degraded": list(readiness.degraded)}, status_code=status)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """Every metric in Prometheus's text format."""
        # Made in a thread: a page of many series takes milliseconds that belong to the data path.
        if control.metrics_page is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "telemetry.metrics.prometheus is false")
        page = await run_in_threadpool(control.metrics_page)
        return Response(page, media_type=None, headers={"content-type": control.metrics_content_type})

    return routes

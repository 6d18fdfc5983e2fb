"""The FastAPI applications over a `Control`: the API behind its guard, and what anybody may ask."""

from __future__ import annotations

from fastapi import FastAPI

from outboxd.http.daemon import daemon_routes
from outboxd.http.guard import LoopbackGuard
from outboxd.http.health import health_routes
from outboxd.http.letters import letter_routes
from outboxd.http.pipelines import pipeline_routes, target_routes
from outboxd.http.problems import install_problems
from outboxd.runtime.control import Control

__all__ = ["create_api", "create_management"]


def create_api(control: Control) -> FastAPI:
    """The API of one daemon."""
    api = FastAPI(
        title="outboxd",
        version=control.version,
        description="Pipelines, letters and replays of one outboxd daemon.",
        redoc_url=None,
    )
    install_problems(api)
    api.include_router(health_routes(control))
    api.include_router(daemon_routes(control))
    api.include_router(pipeline_routes(control))
    api.include_router(target_routes(control))
    api.include_router(letter_routes(control))
    api.add_middleware(LoopbackGuard)
    return api


def create_management(control: Control) -> FastAPI:
    """Probes and metrics and nothing else: nothing here shows a payload or changes anything."""
    management = FastAPI(title="outboxd management", version=control.version, openapi_url=None)
    install_problems(management)
    management.include_router(health_routes(control))
    return management

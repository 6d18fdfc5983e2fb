"""Routes about the daemon itself."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from outboxd.runtime.control import Control

__all__ = ["daemon_routes"]


def daemon_routes(control: Control) -> APIRouter:
    """`/`, `/v1/plugins` and `/v1/config`."""
    routes = APIRouter(tags=["daemon"])

    @routes.get("/")
    async def daemon() -> dict[str, str]:
        """Who answers here."""
        return {"name": control.name, "version": control.version, "instance": control.instance}

    @routes.get("/v1/plugins")
    async def plugins() -> dict[str, list[dict[str, str]]]:
        """Every installed plugin type."""
        return {
            "items": [
                {"kind": each.kind, "name": each.name, "distribution": each.distribution, "version": each.version}
                for each in control.plugins()
            ]
        }

    @routes.get("/v1/config")
    async def config() -> dict[str, Any]:
        """The configuration in force; what came from the environment or a file is shown as its placeholder."""
        return dict(control.configuration())

    return routes

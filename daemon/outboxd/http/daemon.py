"""Routes about the daemon itself."""

from __future__ import annotations

from fastapi import APIRouter

from outboxd.config import ConfigurationInvalid
from outboxd.http.actor import Actor
from outboxd.http.models import ConfigurationBody, ReloadBody
from outboxd.runtime.control import Control

__all__ = ["daemon_routes"]


def daemon_routes(control: Control) -> APIRouter:
    """`/`, `/v1/plugins`, `/v1/config` and its reload."""
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
    async def config() -> ConfigurationBody:
        """The configuration in force, and what came of reading its files the last time."""
        return _configuration(control)

    @routes.post("/v1/config/reload")
    async def reload(actor: Actor) -> ConfigurationBody:
        """Read the files now; 422 with every problem when they are wrong, and then nothing changes."""
        state = await control.reloader.reload(actor=actor)
        if not state.is_successful:
            raise ConfigurationInvalid(state.problems)
        return _configuration(control)

    return routes


def _configuration(control: Control) -> ConfigurationBody:
    return ConfigurationBody(configuration=dict(control.configuration()), reload=ReloadBody.of(control.reloader.state))

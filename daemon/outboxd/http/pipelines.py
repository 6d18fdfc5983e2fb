"""Routes about pipelines; the verbs are Kafka Connect's."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Body

from outboxd.http.actor import Actor
from outboxd.http.models import ChangeBody, PipelineBody, PipelineList, ReloadBody, StatusBody, TargetBody
from outboxd.lifecycle import TargetState
from outboxd.runtime.control import Control

__all__ = ["pipeline_routes", "target_routes"]

_Change = Annotated[ChangeBody | None, Body()]


def pipeline_routes(control: Control) -> APIRouter:
    """`GET /v1/pipelines...`."""
    routes = APIRouter(tags=["pipelines"])
    supervisor = control.supervisor

    @routes.get("/v1/pipelines")
    async def pipelines() -> PipelineList:
        """Every pipeline of this replica with its status."""
        return PipelineList(
            items=[StatusBody.of(each) for each in supervisor.statuses()],
            scope=control.scope,
            reload=ReloadBody.of(control.reloader.state),
        )

    @routes.get("/v1/pipelines/{pipeline}")
    async def one(pipeline: str) -> PipelineBody:
        """One pipeline with its target and its status."""
        return _described(control, pipeline)

    @routes.get("/v1/pipelines/{pipeline}/status")
    async def status(pipeline: str) -> StatusBody:
        """How the pipeline is."""
        return StatusBody.of(supervisor.status(pipeline))

    return routes


def target_routes(control: Control) -> APIRouter:
    """The verbs that change what is wanted, and `restart`."""
    routes = APIRouter(tags=["pipelines"])
    supervisor = control.supervisor

    async def changed(pipeline: str, state: TargetState, actor: str, change: ChangeBody | None) -> PipelineBody:
        await supervisor.set_target(pipeline, state, actor=actor, reason=None if change is None else change.reason)
        return _described(control, pipeline)

    @routes.put("/v1/pipelines/{pipeline}/pause", status_code=HTTPStatus.ACCEPTED)
    async def pause(pipeline: str, actor: Actor, change: _Change = None) -> PipelineBody:
        """Drain it and keep everything; `resume` goes on."""
        return await changed(pipeline, TargetState.PAUSED, actor, change)

    @routes.put("/v1/pipelines/{pipeline}/resume", status_code=HTTPStatus.ACCEPTED)
    async def resume(pipeline: str, actor: Actor, change: _Change = None) -> PipelineBody:
        """Start it when it is paused, stopped, or failed and waiting for a person."""
        return await changed(pipeline, TargetState.STARTED, actor, change)

    @routes.put("/v1/pipelines/{pipeline}/stop", status_code=HTTPStatus.ACCEPTED)
    async def stop(pipeline: str, actor: Actor, change: _Change = None) -> PipelineBody:
        """Drain it and end it; `resume` starts it anew."""
        return await changed(pipeline, TargetState.STOPPED, actor, change)

    @routes.post("/v1/pipelines/{pipeline}/restart", status_code=HTTPStatus.ACCEPTED)
    async def restart(pipeline: str, actor: Actor) -> PipelineBody:
        """Drain it and start it anew, in this replica; a failed one starts at once."""
        supervisor.restart(pipeline, actor=actor)
        return _described(control, pipeline)

    return routes


def _described(control: Control, pipeline: str) -> PipelineBody:
    status = control.supervisor.status(pipeline)
    target = control.supervisor.targets().get(pipeline)
    return PipelineBody(
        name=status.name,
        kind=status.kind,
        target=None if target is None else TargetBody.of(target),
        status=StatusBody.of(status),
        scope=control.scope,
    )

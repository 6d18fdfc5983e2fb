"""Routes about dead letters and their replays."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query

from outboxd.http.actor import Actor
from outboxd.http.models import LetterBody, LetterList, LetterQuery, LetterSummary, ReplayBody, ReplayRequest
from outboxd.runtime.control import Control

__all__ = ["letter_routes"]


def letter_routes(control: Control) -> APIRouter:
    """`/v1/letters...` and `/v1/replays...`."""
    routes = APIRouter(tags=["letters"])
    desk = control.letters

    @routes.get("/v1/letters")
    async def letters(query: Annotated[LetterQuery, Query()]) -> LetterList:
        """A page of letters, newest first within each home."""
        page = await desk.find(query.filter(), limit=query.limit, cursor=query.cursor)
        return LetterList(items=[LetterSummary.of(each) for each in page.items], next=page.next)

    @routes.get("/v1/letters/{letter_id}")
    async def letter(letter_id: UUID) -> LetterBody:
        """One letter, whole."""
        return LetterBody.of(await desk.get(letter_id))

    @routes.post("/v1/replays", status_code=HTTPStatus.CREATED)
    async def create_replay(request: ReplayRequest, actor: Actor) -> ReplayBody:
        """Freeze the letters into a job; the replica that owns each one's partition runs its handler again."""
        return ReplayBody.of(await control.create_replay(list(dict.fromkeys(request.select.ids)), actor=actor))

    @routes.get("/v1/replays/{job_id}")
    async def replay(job_id: UUID) -> ReplayBody:
        """How far a replay is."""
        return ReplayBody.of(await desk.replay(job_id))

    return routes

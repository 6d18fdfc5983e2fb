"""Who asks: the name that a mutation stands under in the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

__all__ = ["ACTOR_HEADER", "Actor"]

ACTOR_HEADER = "outboxd-actor"
"""A client may say who asks; without tokens that is a courtesy, not a proof."""
_LONGEST = 100


def _actor(request: Request) -> str:
    named = "".join(each for each in request.headers.get(ACTOR_HEADER, "") if each.isprintable()).strip()
    if named:
        return named[:_LONGEST]
    return "unknown" if request.client is None else f"http {request.client.host}"


Actor = Annotated[str, Depends(_actor)]
"""The caller's name, else its address."""

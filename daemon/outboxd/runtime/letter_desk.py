"""Letters for people: one view over the homes of all pipelines of this daemon."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from outboxd.errors import ConfigurationError, DatabaseError, LetterUnknown, MoveRefused, PipelineUnknown
from outboxd.ports import LetterFilter, LetterPage, LetterStore, LetterView, ReplayJob

__all__ = ["CursorInvalid", "LetterDesk"]

_T = TypeVar("_T")


class CursorInvalid(ValueError):
    """The cursor is not one that a page gave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterDesk:
    """``homes`` by connection name; ``of_pipeline`` gives for a pipeline the connection where its letters come home.

    Both may change while the configuration does: each question is answered by what is there when it is asked. A list goes
    through the homes one after the other, newest first within each; a cursor carries the home's name.
    """

    homes: Mapping[str, LetterStore]
    of_pipeline: Mapping[str, str | None]

    async def find(self, wanted: LetterFilter, *, limit: int, cursor: str | None = None) -> LetterPage:
        """A page of letters. Raises PipelineUnknown, CursorInvalid, DatabaseError."""
        homes = dict(self.homes)
        names = [name for name in self._names(wanted.pipeline) if name in homes]
        inner: str | None = None
        if cursor is not None:
            name, separator, inner = cursor.partition(":")
            if not separator or name not in names:
                raise CursorInvalid("the cursor is not one that this list gave: begin again without it")
            names = names[names.index(name) :]
        items: list[LetterView] = []
        for index, name in enumerate(names):
            page = await _page(homes[name], wanted, limit - len(items), inner or None)
            items += page.items
            inner = None
            if page.next is not None:
                return LetterPage(items=items, next=f"{name}:{page.next}")
            if len(items) >= limit and index + 1 < len(names):
                return LetterPage(items=items, next=f"{names[index + 1]}:")
        return LetterPage(items=items, next=None)

    async def get(self, letter_id: UUID) -> LetterView:
        """Raises LetterUnknown, DatabaseError."""
        return (await self._located(letter_id))[1]

    async def create_replay(self, letter_ids: Sequence[UUID], *, actor: str) -> ReplayJob:
        """An `in_place` job for these letters, which must have one home.

        Raises LetterUnknown, MoveRefused, DatabaseError.
        """
        homes = {(await self._located(letter_id))[0] for letter_id in letter_ids}
        if len(homes) > 1:
            raise MoveRefused(
                f"the letters have different homes: {', '.join(sorted(homes))}",
                suggestion="make one replay for the letters of each connection",
            )
        name = homes.pop()
        if name not in self.homes:
            raise ConfigurationError(f"connection {name!r} has just been taken out of the configuration")
        return await self.homes[name].create_replay(letter_ids, actor=actor)

    async def replay(self, job_id: UUID) -> ReplayJob:
        """Raises LetterUnknown, DatabaseError."""
        return (await self._first(lambda home: home.replay(job_id), f"there is no replay {job_id}"))[1]

    async def _located(self, letter_id: UUID) -> tuple[str, LetterView]:
        return await self._first(lambda home: home.get(letter_id), f"there is no letter {letter_id}")

    async def _first(self, ask: Callable[[LetterStore], Awaitable[_T]], missing: str) -> tuple[str, _T]:
        """The first home that knows it. One that cannot be asked may be the one that does: then nothing is denied."""
        unasked: DatabaseError | None = None
        for name, home in [*self.homes.items()]:
            try:
                return name, await ask(home)
            except LetterUnknown:
                continue
            except DatabaseError as error:
                unasked = error
        if unasked is not None:
            raise unasked
        raise LetterUnknown(missing, suggestion="list what is there: outboxd letters list")

    def _names(self, pipeline: str | None) -> list[str]:
        if pipeline is None:
            return list(self.homes)
        try:
            home = self.of_pipeline[pipeline]
        except KeyError:
            known = ", ".join(sorted(self.of_pipeline)) or "none"
            raise PipelineUnknown(
                f"there is no pipeline {pipeline!r}", suggestion=f"pipelines of this daemon: {known}"
            ) from None
        return [] if home is None else [home]


async def _page(home: LetterStore, wanted: LetterFilter, limit: int, cursor: str | None) -> LetterPage:
    if limit <= 0:
        return LetterPage(items=[], next=None)
    try:
        return await home.find(wanted, limit=limit, cursor=cursor)
    except (ConfigurationError, ValueError) as error:
        if cursor is None:
            raise
        raise CursorInvalid("the cursor is not one that this list gave: begin again without it") from error

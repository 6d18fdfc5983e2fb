"""Letters for the command line: through a running daemon, or straight from the database of a configuration."""

from __future__ import annotations

import asyncio
import getpass
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from outboxd.cli.client import DaemonClient
from outboxd.errors import ConfigurationError, PipelineUnknown

if TYPE_CHECKING:
    from uuid import UUID

    from outboxd.config import Configuration
    from outboxd.http.models import LetterQuery
    from outboxd.runtime.letter_desk import LetterDesk

__all__ = ["DaemonLetters", "DatabaseLetters", "LetterAccess"]

_T = TypeVar("_T")
Json = dict[str, Any]


class LetterAccess(Protocol):
    """What the commands about letters need; answers are the REST API's documents."""

    def find(self, query: LetterQuery) -> Json:
        """A page of letters."""
        ...

    def get(self, letter_id: UUID) -> Json:
        """A whole letter."""
        ...

    def replay(self, letter_ids: Sequence[UUID]) -> Json:
        """A new `in_place` job."""
        ...

    def job(self, job_id: UUID) -> Json:
        """How far a job is."""
        ...


class DaemonLetters:
    """`LetterAccess` through REST."""

    def __init__(self, client: DaemonClient) -> None:
        self._client = client

    def find(self, query: LetterQuery) -> Json:
        """As `LetterAccess.find`."""
        found: Json = self._client.get("v1", "letters", **query.model_dump(mode="json", exclude_none=True))
        return found

    def get(self, letter_id: UUID) -> Json:
        """As `LetterAccess.get`."""
        found: Json = self._client.get("v1", "letters", str(letter_id))
        return found

    def replay(self, letter_ids: Sequence[UUID]) -> Json:
        """As `LetterAccess.replay`."""
        body = {"select": {"ids": [str(each) for each in letter_ids]}, "mode": "in_place"}
        made: Json = self._client.post("v1", "replays", body=body)
        return made

    def job(self, job_id: UUID) -> Json:
        """As `LetterAccess.job`."""
        found: Json = self._client.get("v1", "replays", str(job_id))
        return found


class DatabaseLetters:
    """`LetterAccess` on the home of one pipeline; no daemon is needed, but for a replay to be carried out."""

    def __init__(self, configuration: Configuration, pipeline: str) -> None:
        if pipeline not in configuration.pipelines:
            known = ", ".join(sorted(configuration.pipelines)) or "none"
            raise PipelineUnknown(f"there is no pipeline {pipeline!r}", suggestion=f"the configuration has: {known}")
        self._configuration = configuration
        self._pipeline = pipeline

    def find(self, query: LetterQuery) -> Json:
        """As `LetterAccess.find`."""
        from outboxd.http.models import LetterList, LetterSummary

        wanted = query.model_copy(update={"pipeline": self._pipeline})

        async def ask(desk: LetterDesk) -> Json:
            page = await desk.find(wanted.filter(), limit=wanted.limit, cursor=wanted.cursor)
            shown = LetterList(items=[LetterSummary.of(each) for each in page.items], next=page.next)
            return shown.model_dump(mode="json")

        return self._ask(ask)

    def get(self, letter_id: UUID) -> Json:
        """As `LetterAccess.get`."""
        from outboxd.http.models import LetterBody

        async def ask(desk: LetterDesk) -> Json:
            return LetterBody.of(await desk.get(letter_id)).model_dump(mode="json")

        return self._ask(ask)

    def replay(self, letter_ids: Sequence[UUID]) -> Json:
        """As `LetterAccess.replay`."""
        from outboxd.http.models import ReplayBody

        actor = f"{getpass.getuser()}@{socket.gethostname()}"

        async def ask(desk: LetterDesk) -> Json:
            return ReplayBody.of(await desk.create_replay(letter_ids, actor=actor)).model_dump(mode="json")

        return self._ask(ask)

    def job(self, job_id: UUID) -> Json:
        """As `LetterAccess.job`."""
        from outboxd.http.models import ReplayBody

        async def ask(desk: LetterDesk) -> Json:
            return ReplayBody.of(await desk.replay(job_id)).model_dump(mode="json")

        return self._ask(ask)

    def _ask(self, question: Callable[[LetterDesk], Awaitable[_T]]) -> _T:
        from outboxd.runtime.homes import Homes

        async def asked() -> _T:
            pipelines = {self._pipeline: self._configuration.pipelines[self._pipeline]}
            homes = Homes(self._configuration.connections, pipelines)
            await homes.open()
            try:
                desk = homes.desk()
                if not desk.homes:
                    raise ConfigurationError(
                        f"pipeline {self._pipeline!r} has no home for letters: its chain has no Postgres sink",
                        suggestion="add `{type: postgres, connection: NAME}` to its dead_letters.chain",
                    )
                return await question(desk)
            finally:
                await homes.close()

        return asyncio.run(asked())

"""The rows behind the double of replay jobs: frozen sets of letters, claims, and the claims of the silent given back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from outboxd.errors import LetterUnknown, MoveRefused
from outboxd.ports import Clock, ReplayItem, ReplayJob
from outboxd.records import Letter, LetterStatus, Stage, TopicPartition
from outboxd.testing.fakes.letter_rows import LetterRows, kept_text

__all__ = ["ReplayRows"]

_S = LetterStatus
_CLAIMABLE: Final = frozenset({_S.NEW, _S.FAILED})
_OPEN: Final = frozenset({"waiting", "claimed"})
_SILENT_SECONDS: Final = 60.0
_ERROR_BYTES: Final = 8 * 1024


@dataclass(slots=True, kw_only=True)
class _Item:
    """``state``: waiting, claimed, resolved, failed, or skipped (closed before its turn)."""

    job_id: UUID
    letter: Letter
    state: str = "waiting"
    owner: str | None = None
    attempt: int = 0

    @property
    def turn(self) -> tuple[str, int, int, UUID]:
        """Items are claimed in the order of the records."""
        return self.letter.topic, self.letter.partition, self.letter.offset, self.letter.id


@dataclass(slots=True, kw_only=True)
class _Job:
    id: UUID
    actor: str
    created_at: datetime
    items: list[_Item]


class ReplayRows:
    """Jobs over the letters of ``letters``."""

    def __init__(self, clock: Clock, letters: LetterRows) -> None:
        self.jobs: dict[UUID, _Job] = {}
        self._heard: dict[str, float] = {}
        self._clock = clock
        self._letters = letters

    def create(self, job_id: UUID, letter_ids: Sequence[UUID], actor: str) -> ReplayJob:
        """Freeze the set. Raises LetterUnknown, MoveRefused."""
        if not letter_ids:
            raise LetterUnknown("no letters to replay")
        wanted = list(dict.fromkeys(letter_ids))
        for letter_id in wanted:
            self._check(letter_id)
        items = [_Item(job_id=job_id, letter=self._letters.view(letter_id).letter) for letter_id in wanted]
        items.sort(key=lambda item: item.turn)
        self.jobs[job_id] = _Job(id=job_id, actor=kept_text(actor), created_at=self._clock.now(), items=items)
        return self.shown(job_id)

    def shown(self, job_id: UUID) -> ReplayJob:
        """The job as it stands. Raises LetterUnknown."""
        job = self._job(job_id)
        states = [item.state for item in job.items]
        state, reason = _state(states)
        return ReplayJob(
            id=job.id,
            state=state,
            mode="in_place",
            total=len(states),
            sent=sum(state in {"claimed", "resolved", "failed"} for state in states),
            resolved=states.count("resolved"),
            failed=states.count("failed"),
            created_at=job.created_at,
            actor=job.actor,
            reason=reason,
            letters=[item.letter.id for item in job.items],
        )

    def heartbeat(self, owner: str) -> None:
        """This claimant lives now."""
        self._heard[owner] = self._clock.monotonic()

    def claim(
        self, pipeline: str, group: str, partitions: Collection[TopicPartition], owner: str, limit: int
    ) -> Sequence[ReplayItem]:
        """Look at so many waiting items, claim those whose letters are open; the claims of the silent come back first."""
        if not partitions or limit <= 0:
            return []
        self.heartbeat(owner)
        self._return_silent(pipeline)
        waiting = sorted(
            (
                item
                for item in self._items()
                if item.state == "waiting"
                and (item.letter.pipeline, item.letter.group or "") == (pipeline, group)
                and TopicPartition(item.letter.topic, item.letter.partition) in partitions
            ),
            key=lambda item: item.turn,
        )
        return [claimed for item in waiting[:limit] if (claimed := self._claim(item, owner)) is not None]

    def finish(self, claim: ReplayItem, *, resolved: bool, error: str | None) -> None:
        """End the claim; a repeat changes nothing. Raises MoveRefused when another claim decides."""
        outcome = "resolved" if resolved else "failed"
        item = self._claimed(claim, "claimed", outcome)
        if item is None:
            raise MoveRefused(f"letter {claim.letter.id} is not claimed under attempt {claim.attempt} any more")
        if item.state == outcome:
            return
        item.state = outcome
        view = self._letters.views.get(item.letter.id)
        if view is None or view.status is not _S.PROCESSING:
            return
        failed_at = view.letter.last_failed_at if resolved else self._clock.now()
        ran = replace(view.letter, attempts=view.letter.attempts + 1, last_failed_at=failed_at)
        self._letters.views[item.letter.id] = replace(view, letter=ran)
        reason = None if error is None else kept_text(error, _ERROR_BYTES)
        self._letters.move(item.letter.id, _S.RESOLVED if resolved else _S.FAILED, _actor(item), reason)

    def give_back(self, claim: ReplayItem, reason: str = "given back") -> None:
        """The letter goes back to where the claim found it; nothing when the claim is gone."""
        item = self._claimed(claim, "claimed")
        if item is not None:
            self._give_back(item, reason)

    def _check(self, letter_id: UUID) -> None:
        view = self._letters.view(letter_id)
        if any(item.letter.id == letter_id and item.state in _OPEN for item in self._items()):
            raise MoveRefused(f"letter {letter_id} is in another replay job already")
        if view.letter.stage is Stage.FETCH:
            raise MoveRefused(f"letter {letter_id} cannot be replayed: the record could not be read from the broker")
        if view.status not in _CLAIMABLE:
            raise MoveRefused(f"letter {letter_id} is {view.status}: only NEW and FAILED letters are replayed")

    def _job(self, job_id: UUID) -> _Job:
        if job_id not in self.jobs:
            raise LetterUnknown(f"there is no replay job {job_id}")
        return self.jobs[job_id]

    def _items(self) -> list[_Item]:
        return [item for job in self.jobs.values() for item in job.items]

    def _claim(self, item: _Item, owner: str) -> ReplayItem | None:
        view = self._letters.views.get(item.letter.id)
        if view is None or view.status not in _CLAIMABLE:
            item.state = "skipped"
            return None
        count = view.replay_count + 1
        item.state, item.owner, item.attempt = "claimed", owner, count
        self._letters.views[item.letter.id] = replace(view, replay_count=count)
        self._letters.move(item.letter.id, _S.PROCESSING, _actor(item), f"claimed by {owner}")
        return ReplayItem(job_id=item.job_id, letter=view.letter, attempt=count)

    def _claimed(self, claim: ReplayItem, *states: str) -> _Item | None:
        for item in self._job(claim.job_id).items:
            if item.letter.id == claim.letter.id and item.attempt == claim.attempt and item.state in states:
                return item
        return None

    def _give_back(self, item: _Item, reason: str) -> None:
        item.state, item.owner = "waiting", None
        view = self._letters.views.get(item.letter.id)
        before = self._letters.before(item.letter.id, _S.PROCESSING)
        if view is not None and view.status is _S.PROCESSING and before is not None:
            self._letters.move(item.letter.id, before, _actor(item), reason)

    def _return_silent(self, pipeline: str) -> None:
        now = self._clock.monotonic()
        for item in self._items():
            is_alive = item.owner in self._heard and now < self._heard[item.owner] + _SILENT_SECONDS
            if item.state == "claimed" and item.letter.pipeline == pipeline and not is_alive:
                self._give_back(item, f"claimant silent: {item.owner}")


def _actor(item: _Item) -> str:
    return f"replay {item.job_id}"


def _state(states: Sequence[str]) -> tuple[str, str | None]:
    if "claimed" in states:
        return "RUNNING", None
    if "waiting" not in states:
        skipped = states.count("skipped")
        return "DONE", f"{skipped} letters were closed before their turn" if skipped else None
    if set(states) != {"waiting"}:
        return "RUNNING", None
    return "WAITING", "no replica of the pipeline that owns the letters' partitions has taken them yet"

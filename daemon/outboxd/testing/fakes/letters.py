"""The home of letters in memory: statuses, history, replay jobs with claims, and the drain's position under its lease."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import Final
from uuid import UUID

from outboxd.errors import LetterUnknown, MoveRefused
from outboxd.ports import (
    Clock,
    LeaseToken,
    LetterFilter,
    LetterPage,
    LetterView,
    Random,
    ReplayItem,
    ReplayJob,
)
from outboxd.records import Letter, LetterStatus, Refused, Stored, TopicPartition
from outboxd.testing.fakes.faults import Faults
from outboxd.testing.fakes.lease import FakeLeases

__all__ = ["FakeLetters", "Moved"]

_S = LetterStatus
_BY_HAND: Final[Mapping[LetterStatus, frozenset[LetterStatus]]] = MappingProxyType(
    {
        _S.DISCARDED: frozenset({_S.NEW, _S.BLOCKED, _S.FAILED, _S.REPLAYED}),
        _S.ARCHIVED: frozenset({_S.NEW, _S.BLOCKED, _S.FAILED, _S.REPLAYED, _S.RESOLVED, _S.DISCARDED}),
    }
)
_CLAIMABLE: Final = frozenset({_S.NEW, _S.FAILED})
_SILENT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One entry of the history."""

    letter_id: UUID
    before: LetterStatus | None
    after: LetterStatus
    actor: str
    reason: str | None = None


@dataclass(slots=True, kw_only=True)
class _Item:
    letter_id: UUID
    state: str = "waiting"
    owner: str | None = None
    before: LetterStatus = LetterStatus.NEW


@dataclass(slots=True, kw_only=True)
class _Job:
    id: UUID
    actor: str
    created_at: datetime
    items: list[_Item]


@dataclass(slots=True, kw_only=True)
class _Rows:
    views: dict[UUID, LetterView] = field(default_factory=dict)
    known: set[UUID] = field(default_factory=set)
    jobs: dict[UUID, _Job] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)


class FakeLetters:
    """The ports LetterStore and DrainStore; ``faults`` may befall each call, ``history`` is every move."""

    def __init__(
        self, clock: Clock, random: Random, leases: FakeLeases | None = None, faults: Faults | None = None
    ) -> None:
        self.faults = Faults() if faults is None else faults
        self.leases = FakeLeases(clock) if leases is None else leases
        self.history: list[Moved] = []
        self._clock = clock
        self._random = random
        self._rows = _Rows()

    @property
    def letters(self) -> Sequence[Letter]:
        """Every letter, in the order of its coming."""
        return [view.letter for view in self._rows.views.values()]

    def status(self, letter_id: UUID) -> LetterStatus:
        """Where the letter stands."""
        return self._view(letter_id).status

    def drop(self, letter_id: UUID) -> None:
        """Drop the letter as retention does: its id stays known."""
        del self._rows.views[letter_id]

    async def store(self, letters: Sequence[Letter], *, sink: str) -> Sequence[Stored | Refused]:
        """Write them as NEW; known ones count as stored."""

        def effect() -> Sequence[Stored | Refused]:
            self._insert(letters, sink)
            return [Stored(detail=str(letter.id)) for letter in letters]

        return await self.faults.around("store", effect)

    async def drain(self, letters: Sequence[Letter], *, sink: str, lease: LeaseToken, position: str) -> int:
        """Insert and note the position in one step, or raise LeaseLost and do nothing."""

        def effect() -> int:
            self.leases.note(lease, {"position": position})
            return self._insert(letters, sink)

        return await self.faults.around("drain", effect)

    async def get(self, letter_id: UUID) -> LetterView:
        """The letter as it stands."""
        return await self.faults.around("get", lambda: self._view(letter_id))

    async def find(self, wanted: LetterFilter, *, limit: int, cursor: str | None = None) -> LetterPage:
        """A page, newest first."""

        def effect() -> LetterPage:
            views = [view for view in reversed(self._rows.views.values()) if _matches(view, wanted)]
            start = int(cursor or 0)
            following = start + limit
            return LetterPage(items=views[start:following], next=str(following) if following < len(views) else None)

        return await self.faults.around("find", effect)

    async def move(self, letter_ids: Sequence[UUID], to: LetterStatus, *, actor: str, reason: str | None) -> int:
        """Move by hand, all or none. Raises LetterUnknown, MoveRefused."""

        def effect() -> int:
            for letter_id in letter_ids:
                if self._view(letter_id).status not in _BY_HAND.get(to, frozenset()):
                    raise MoveRefused(f"letter {letter_id} is {self._view(letter_id).status}: it cannot go to {to}")
            for letter_id in letter_ids:
                self._move(letter_id, to, actor, reason)
            return len(letter_ids)

        return await self.faults.around("move", effect)

    async def create_replay(self, letter_ids: Sequence[UUID], *, actor: str) -> ReplayJob:
        """Freeze the set. Raises LetterUnknown, MoveRefused."""

        def effect() -> ReplayJob:
            for letter_id in letter_ids:
                if self._view(letter_id).status not in _CLAIMABLE:
                    raise MoveRefused(f"letter {letter_id} is {self._view(letter_id).status}: it cannot be replayed")
            items = [_Item(letter_id=letter_id) for letter_id in letter_ids]
            job = _Job(id=self._random.uuid(), actor=actor, created_at=self._clock.now(), items=items)
            self._rows.jobs[job.id] = job
            return _shown(job)

        return await self.faults.around("create_replay", effect)

    async def replay(self, job_id: UUID) -> ReplayJob:
        """The job as it stands. Raises LetterUnknown."""
        return await self.faults.around("replay", lambda: _shown(self._job(job_id)))

    async def claim(
        self, *, pipeline: str, group: str, partitions: Collection[TopicPartition], owner: str, limit: int
    ) -> Sequence[ReplayItem]:
        """Claim waiting items; those of claimants that have been silent for a minute are given back first."""

        def effect() -> Sequence[ReplayItem]:
            self._rows.heard[owner] = self._clock.monotonic()
            self._return_silent()
            claimed: list[ReplayItem] = []
            for job in self._rows.jobs.values():
                for item in job.items:
                    if len(claimed) < limit and self._is_claimable(item, pipeline, group, partitions):
                        claimed.append(self._claim(job, item, owner))
            return claimed

        return await self.faults.around("claim", effect)

    async def heartbeat(self, owner: str) -> None:
        """The claimant lives."""

        def effect() -> None:
            self._rows.heard[owner] = self._clock.monotonic()

        await self.faults.around("heartbeat", effect)

    async def finish(self, item: ReplayItem, *, resolved: bool, error: str | None) -> None:
        """PROCESSING to RESOLVED or FAILED. Raises MoveRefused when the claim is gone."""

        def effect() -> None:
            own = self._claimed(item)
            own.state = "resolved" if resolved else "failed"
            view = self._view(own.letter_id)
            failed_at = view.letter.last_failed_at if resolved else self._clock.now()
            ran = replace(view.letter, attempts=view.letter.attempts + 1, last_failed_at=failed_at)
            self._rows.views[own.letter_id] = replace(view, letter=ran)
            self._move(own.letter_id, _S.RESOLVED if resolved else _S.FAILED, "replay", error)

        await self.faults.around("finish", effect)

    async def give_back(self, item: ReplayItem) -> None:
        """PROCESSING to the status before. Raises MoveRefused when the claim is gone."""
        await self.faults.around("give_back", lambda: self._give_back(self._claimed(item)))

    def _insert(self, letters: Sequence[Letter], sink: str) -> int:
        new = [letter for letter in letters if letter.id not in self._rows.known]
        now = self._clock.now()
        for letter in new:
            self._rows.known.add(letter.id)
            self._rows.views[letter.id] = LetterView(
                letter=letter, status=_S.NEW, sink=sink, created_at=now, updated_at=now, replay_count=0
            )
            self.history.append(Moved(letter_id=letter.id, before=None, after=_S.NEW, actor="daemon"))
        return len(new)

    def _view(self, letter_id: UUID) -> LetterView:
        if letter_id not in self._rows.views:
            raise LetterUnknown(f"there is no letter {letter_id}")
        return self._rows.views[letter_id]

    def _job(self, job_id: UUID) -> _Job:
        if job_id not in self._rows.jobs:
            raise LetterUnknown(f"there is no replay {job_id}")
        return self._rows.jobs[job_id]

    def _move(self, letter_id: UUID, to: LetterStatus, actor: str, reason: str | None = None) -> None:
        view = self._view(letter_id)
        self._rows.views[letter_id] = replace(view, status=to, updated_at=self._clock.now())
        self.history.append(Moved(letter_id=letter_id, before=view.status, after=to, actor=actor, reason=reason))

    def _is_claimable(self, item: _Item, pipeline: str, group: str, partitions: Collection[TopicPartition]) -> bool:
        if item.state != "waiting" or item.letter_id not in self._rows.views:
            return False
        view = self._view(item.letter_id)
        letter = view.letter
        return (
            (letter.pipeline, letter.group) == (pipeline, group)
            and TopicPartition(letter.topic, letter.partition) in partitions
            and view.status in _CLAIMABLE
        )

    def _claim(self, job: _Job, item: _Item, owner: str) -> ReplayItem:
        view = self._view(item.letter_id)
        item.state, item.owner, item.before = "claimed", owner, view.status
        count = view.replay_count + 1
        self._rows.views[item.letter_id] = replace(view, replay_count=count)
        self._move(item.letter_id, _S.PROCESSING, owner)
        return ReplayItem(job_id=job.id, letter=view.letter, attempt=count)

    def _claimed(self, item: ReplayItem) -> _Item:
        for own in self._job(item.job_id).items:
            is_its_claim = own.state == "claimed" and self._view(own.letter_id).replay_count == item.attempt
            if own.letter_id == item.letter.id and is_its_claim:
                return own
        raise MoveRefused(f"letter {item.letter.id} is not claimed under attempt {item.attempt} any more")

    def _give_back(self, item: _Item) -> None:
        item.state, item.owner = "waiting", None
        self._move(item.letter_id, item.before, "replay", "given back")

    def _return_silent(self) -> None:
        now = self._clock.monotonic()
        for job in self._rows.jobs.values():
            for item in job.items:
                heard = self._rows.heard.get(item.owner or "", now)
                if item.state == "claimed" and now - heard > _SILENT_SECONDS:
                    self._give_back(item)


def _shown(job: _Job) -> ReplayJob:
    states = [item.state for item in job.items]
    is_done = all(state in {"resolved", "failed"} for state in states)
    state = "DONE" if is_done else "RUNNING" if "claimed" in states else "WAITING"
    return ReplayJob(
        id=job.id,
        state=state,
        mode="in_place",
        total=len(states),
        sent=sum(state != "waiting" for state in states),
        resolved=states.count("resolved"),
        failed=states.count("failed"),
        created_at=job.created_at,
        actor=job.actor,
        letters=[item.letter_id for item in job.items],
    )


def _matches(view: LetterView, wanted: LetterFilter) -> bool:
    letter = view.letter
    wishes: Sequence[tuple[object, object]] = (
        (wanted.pipeline, letter.pipeline),
        (wanted.topic, letter.topic),
        (wanted.status, view.status),
        (wanted.error_class, letter.error_class),
        (wanted.fingerprint, letter.fingerprint),
        (wanted.key, letter.key),
    )
    return (
        all(wish is None or wish == value for wish, value in wishes)
        and (wanted.since is None or view.created_at >= wanted.since)
        and (wanted.until is None or view.created_at < wanted.until)
    )

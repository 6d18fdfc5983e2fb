"""The home of letters in memory: the ports LetterStore and DrainStore over rows, with the faults that a test plans."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from uuid import UUID

from outboxd.errors import StatementFailed
from outboxd.ports import Clock, LeaseToken, LetterFilter, LetterPage, LetterView, Random, ReplayItem, ReplayJob
from outboxd.records import Letter, LetterStatus, Refused, Stored, TopicPartition
from outboxd.testing.fakes.faults import Faults
from outboxd.testing.fakes.lease import FakeLeases
from outboxd.testing.fakes.letter_rows import LetterRows, Moved, refusal
from outboxd.testing.fakes.replay_rows import ReplayRows

__all__ = ["FakeLetters", "Moved"]


class FakeLetters:
    """The ports LetterStore and DrainStore; ``faults`` may befall each call, ``history`` is every move."""

    def __init__(
        self, clock: Clock, random: Random, leases: FakeLeases | None = None, faults: Faults | None = None
    ) -> None:
        self.faults = Faults() if faults is None else faults
        self.leases = FakeLeases(clock) if leases is None else leases
        self._random = random
        self._letters = LetterRows(clock)
        self._rows = ReplayRows(clock, self._letters)
        self.history = self._letters.history

    @property
    def letters(self) -> Sequence[Letter]:
        """Every letter, in the order of its coming."""
        return [view.letter for view in self._letters.views.values()]

    def status(self, letter_id: UUID) -> LetterStatus:
        """Where the letter stands."""
        return self._letters.view(letter_id).status

    def drop(self, letter_id: UUID) -> None:
        """Drop the letter as retention does: its id stays known."""
        del self._letters.views[letter_id]

    async def store(self, letters: Sequence[Letter], *, sink: str) -> Sequence[Stored | Refused]:
        """Write them as NEW; known ones count as stored, and one that is refused leaves its neighbours alone."""

        def effect() -> Sequence[Stored | Refused]:
            reasons = [refusal(letter) for letter in letters]
            fine = [letter for letter, reason in zip(letters, reasons, strict=True) if reason is None]
            self._letters.insert(fine, sink)
            return [
                Stored(detail=str(letter.id)) if reason is None else Refused(reason=reason)
                for letter, reason in zip(letters, reasons, strict=True)
            ]

        return await self.faults.around("store", effect)

    async def drain(self, letters: Sequence[Letter], *, sink: str, lease: LeaseToken, position: str) -> int:
        """Insert and note the position in one step, or raise LeaseLost or StatementFailed and do nothing."""

        def effect() -> int:
            self.leases.note(lease, {})
            for letter in letters:
                if (reason := refusal(letter)) is not None:
                    raise StatementFailed(reason, sqlstate=None)
            self.leases.note(lease, {"position": position})
            return self._letters.insert(letters, sink)

        return await self.faults.around("drain", effect)

    async def get(self, letter_id: UUID) -> LetterView:
        """The letter as it stands."""
        return await self.faults.around("get", lambda: self._letters.view(letter_id))

    async def find(self, wanted: LetterFilter, *, limit: int, cursor: str | None = None) -> LetterPage:
        """A page, newest first."""
        return await self.faults.around("find", lambda: self._letters.page(wanted, limit, cursor))

    async def move(self, letter_ids: Sequence[UUID], to: LetterStatus, *, actor: str, reason: str | None) -> int:
        """Move by hand, all or none. Raises MoveRefused."""
        return await self.faults.around("move", lambda: self._letters.move_by_hand(letter_ids, to, actor, reason))

    async def create_replay(self, letter_ids: Sequence[UUID], *, actor: str) -> ReplayJob:
        """Freeze the set. Raises LetterUnknown, MoveRefused."""
        return await self.faults.around(
            "create_replay", lambda: self._rows.create(self._random.uuid(), letter_ids, actor)
        )

    async def replay(self, job_id: UUID) -> ReplayJob:
        """The job as it stands. Raises LetterUnknown."""
        return await self.faults.around("replay", lambda: self._rows.shown(job_id))

    async def claim(
        self, *, pipeline: str, group: str, partitions: Collection[TopicPartition], owner: str, limit: int
    ) -> Sequence[ReplayItem]:
        """Claim waiting items; those of claimants that have been silent for a minute are given back first."""
        return await self.faults.around("claim", lambda: self._rows.claim(pipeline, group, partitions, owner, limit))

    async def heartbeat(self, owner: str) -> None:
        """The claimant lives."""
        await self.faults.around("heartbeat", lambda: self._rows.heartbeat(owner))

    async def finish(self, item: ReplayItem, *, resolved: bool, error: str | None) -> None:
        """PROCESSING to RESOLVED or FAILED. Raises MoveRefused when the claim is gone."""
        await self.faults.around("finish", lambda: self._rows.finish(item, resolved=resolved, error=error))

    async def give_back(self, item: ReplayItem) -> None:
        """PROCESSING to the status before, if the claim is still there."""
        await self.faults.around("give_back", lambda: self._rows.give_back(item))

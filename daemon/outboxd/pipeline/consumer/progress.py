"""How far one partition is in one assignment: the contiguous prefix of offsets that is done. Pure."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Progress"]

_T = TypeVar("_T")


class Progress(Generic[_T]):
    """Which records are in hand, and the offset that may be committed (invariant 4).

    Only what is *not* done is kept, so a stuck record with a million done behind it costs one entry.
    """

    __slots__ = ("committed", "incarnation", "pending", "position")

    def __init__(self, start: int, committed: int | None) -> None:
        self.pending: dict[int, _T] = {}
        """Records in hand by offset, in offset order (a dict keeps the order in which they came)."""
        self.position = start
        """The next offset that is not in hand and never was: past control records too."""
        self.committed = committed
        """What the broker has of us; None when there is nothing."""
        self.incarnation = 0
        """Grows when the topic was made anew: a commit that was asked for before says nothing about the new one."""

    def took(self, offset: int, record: _T) -> bool:
        """A record came from the log. False, and nothing changes, when it was delivered before."""
        if offset < self.position:
            return False
        self.pending[offset] = record
        self.position = offset + 1
        return True

    def done(self, offset: int) -> None:
        """The record was handled, skipped by a rule, or its letter is durable."""
        self.pending.pop(offset, None)

    def reached(self, position: int) -> None:
        """The client reads next from here and everything before is in hand: what lies between holds no records."""
        self.position = max(self.position, position)

    def restart(self, start: int) -> None:
        """The topic was made anew: its offsets begin again, and so do commits. Only with nothing in hand."""
        assert not self.pending, "what is in hand of the old topic is finished first"
        self.position = start
        self.committed = None
        self.incarnation += 1

    @property
    def safe(self) -> int:
        """Every record before this offset is done; this one is not, or has not been seen."""
        for offset in self.pending:
            return offset
        return self.position

    def committable(self) -> int | None:
        """The next offset to commit; None when the broker has it already. Never negative, never backwards."""
        safe = self.safe
        if safe < 0 or (self.committed is not None and safe <= self.committed):
            return None
        return safe

    def commit_acknowledged(self, offset: int) -> None:
        """The broker has this offset now."""
        if self.committed is None or offset > self.committed:
            self.committed = offset

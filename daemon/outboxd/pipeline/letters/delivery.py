"""One batch of letters on its way down a chain: who took which, who refused which and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from outboxd.errors import ChainExhausted
from outboxd.records import Letter, Refused, Stored

__all__ = ["Delivery"]


class Delivery:
    """The state of one `Chain.write` over a chain of so many ``sinks``."""

    __slots__ = ("_letters", "_reasons", "_refusals", "_sinks", "_takers", "_waiting")

    def __init__(self, letters: Sequence[Letter], *, sinks: int) -> None:
        self._letters = letters
        self._sinks = sinks
        self._waiting = list(range(len(letters)))
        self._takers: dict[int, str] = {}
        self._refusals: dict[int, int] = {}
        self._reasons: dict[str, str] = {}

    @property
    def is_done(self) -> bool:
        """True when each letter has been taken."""
        return not self._waiting

    @property
    def waiting(self) -> Sequence[Letter]:
        """The letters that nobody has yet, in their order."""
        return [self._letters[index] for index in self._waiting]

    def takers(self) -> Sequence[str]:
        """The name of the sink that took each letter, in order; only once it is done."""
        return [self._takers[index] for index in range(len(self._letters))]

    def unavailable(self, sink: str, reason: str) -> None:
        """The sink took none of them."""
        self._reasons[sink] = reason

    def answered(
        self, sink: str, answers: Sequence[Stored | Refused]
    ) -> tuple[Sequence[Letter], Sequence[tuple[Letter, str]]]:
        """The sink answered for each waiting letter; gives those it stored, and those it refused with the reason."""
        stored: list[Letter] = []
        refused: list[tuple[Letter, str]] = []
        left: list[int] = []
        for index, answer in zip(self._waiting, answers, strict=True):
            letter = self._letters[index]
            if isinstance(answer, Stored):
                self._takers[index] = sink
                stored.append(letter)
            else:
                self._refusals[index] = self._refusals.get(index, 0) + 1
                self._reasons[sink] = f"refused: {answer.reason}"
                refused.append((letter, answer.reason))
                left.append(index)
        self._waiting = left
        return stored, refused

    def exhausted(self) -> ChainExhausted:
        """The error that says why some letters have no place, and where the others are."""
        is_refused = self._sinks > 0 and all(self._refusals.get(index) == self._sinks for index in self._waiting)
        first = self._letters[self._waiting[0]]
        reasons = "; ".join(f"{sink}: {reason}" for sink, reason in self._reasons.items()) or "the chain has no sinks"
        stored: dict[UUID, str] = {self._letters[index].id: sink for index, sink in self._takers.items()}
        if is_refused:
            return ChainExhausted(
                f"every sink refused letter {first.id} of {first.topic}-{first.partition}@{first.offset}: {reasons}",
                reason="letter_refused",
                stored=stored,
                suggestion="raise the limit that the refusal names, or add a sink that has none",
            )
        return ChainExhausted(
            f"no sink took letter {first.id} of {first.topic}-{first.partition}@{first.offset}: {reasons}",
            stored=stored,
            suggestion="bring one of the sinks back; the letters are written by themselves then",
        )

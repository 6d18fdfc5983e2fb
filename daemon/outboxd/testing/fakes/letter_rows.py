"""The rows behind the double of the letters' home: what is kept of a letter, how it moves, and pages over all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final
from uuid import UUID

from outboxd.errors import ConfigurationError, LetterUnknown, MoveRefused
from outboxd.ports import Clock, LetterFilter, LetterPage, LetterView
from outboxd.records import Letter, LetterStatus

__all__ = ["LetterRows", "Moved", "kept_text", "refusal"]

_S = LetterStatus
_BY_HAND: Final[Mapping[LetterStatus, frozenset[LetterStatus]]] = MappingProxyType(
    {
        _S.NEW: frozenset({_S.DISCARDED, _S.ARCHIVED}),
        _S.BLOCKED: frozenset({_S.DISCARDED, _S.ARCHIVED}),
        _S.FAILED: frozenset({_S.DISCARDED, _S.ARCHIVED}),
        _S.REPLAYED: frozenset({_S.DISCARDED, _S.ARCHIVED}),
        _S.RESOLVED: frozenset({_S.ARCHIVED}),
        _S.DISCARDED: frozenset({_S.ARCHIVED}),
        _S.ARCHIVED: frozenset(),
        _S.PROCESSING: frozenset(),
    }
)
_CLOSED_BY_HAND: Final = frozenset({_S.DISCARDED, _S.ARCHIVED})
_UNKEEPABLE: Final = re.compile("[\x00\ud800-\udfff]")
_NAME_BYTES: Final = 1024
_CAPS: Final[Mapping[str, int]] = MappingProxyType({"error_message": 8 * 1024, "error_traceback": 32 * 1024})
_TEXTS: Final = (
    "pipeline",
    "group",
    "handler",
    "topic",
    "error_class",
    "error_root_class",
    "error_message",
    "error_traceback",
    "rule",
    "fingerprint",
    "traceparent",
    "outbox_id",
)
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """One entry of the history."""

    letter_id: UUID
    before: LetterStatus | None
    after: LetterStatus
    actor: str
    reason: str | None = None


def kept_text(text: str, limit: int = _NAME_BYTES) -> str:
    """Text as a database keeps it: without NUL and lone surrogates, at most so many bytes."""
    return _UNKEEPABLE.sub("\ufffd", text).encode()[:limit].decode("utf-8", "ignore")


def refusal(letter: Letter) -> str | None:
    """Why the home cannot take this letter: a number that its column has no room for."""
    sizes = {"partition": 32, "attempts": 32, "offset": 64, "timestamp": 64}
    for name, bits in sizes.items():
        if not -(2 ** (bits - 1)) <= getattr(letter, name) < 2 ** (bits - 1):
            return f"{name} is out of range"
    return None


class LetterRows:
    """Every letter with its status; ``history`` is every move. Ids stay known after their letters are dropped."""

    def __init__(self, clock: Clock) -> None:
        self.history: list[Moved] = []
        self.views: dict[UUID, LetterView] = {}
        self._clock = clock
        self._known: set[UUID] = set()
        self._last = datetime.min.replace(tzinfo=UTC)

    def insert(self, letters: Sequence[Letter], sink: str) -> int:
        """Those that are not known yet, as NEW, all of one moment; how many they were."""
        self._last = now = max(self._clock.now(), self._last + _TICK)
        new = [
            letter for letter in {letter.id: letter for letter in reversed(letters)}.values() if self._is_new(letter)
        ]
        for letter in reversed(new):
            self._known.add(letter.id)
            self.views[letter.id] = LetterView(
                letter=_kept(letter), status=_S.NEW, sink=sink, created_at=now, updated_at=now, replay_count=0
            )
            self.history.append(Moved(letter_id=letter.id, before=None, after=_S.NEW, actor="daemon"))
        return len(new)

    def view(self, letter_id: UUID) -> LetterView:
        """Raises LetterUnknown."""
        if letter_id not in self.views:
            raise LetterUnknown(f"there is no letter {letter_id}")
        return self.views[letter_id]

    def page(self, wanted: LetterFilter, limit: int, cursor: str | None) -> LetterPage:
        """Newest first; the cursor names the last letter of the page before, so that new ones shift nothing."""
        views = sorted(self.views.values(), key=_age, reverse=True)
        last = None if cursor is None else _position(cursor)
        found = [view for view in views if _matches(view, wanted) and (last is None or _age(view) < last)]
        items = found[:limit]
        return LetterPage(items=items, next=_cursor(items[-1]) if len(found) > limit and items else None)

    def move(self, letter_id: UUID, to: LetterStatus, actor: str, reason: str | None = None) -> None:
        """Move it and write that down."""
        view = self.view(letter_id)
        self.views[letter_id] = replace(view, status=to, updated_at=self._clock.now())
        self.history.append(Moved(letter_id=letter_id, before=view.status, after=to, actor=actor, reason=reason))

    def move_by_hand(self, letter_ids: Sequence[UUID], to: LetterStatus, actor: str, reason: str | None) -> int:
        """Discard, archive or restore, all or none; what is there already, and what is unknown, is left out."""
        views = [self.views[letter_id] for letter_id in sorted(set(letter_ids)) if letter_id in self.views]
        moving = [view for view in views if view.status is not to]
        for view in moving:
            if not self._is_allowed(view, to):
                raise MoveRefused(f"letter {view.letter.id} is {view.status} and cannot go to {to}")
        for view in moving:
            self.move(view.letter.id, to, kept_text(actor), None if reason is None else kept_text(reason))
        return len(moving)

    def before(self, letter_id: UUID, status: LetterStatus) -> LetterStatus | None:
        """The status from which the letter came into this one; being restored to DISCARDED does not count."""
        for move in reversed(self.history):
            is_restored = (move.before, move.after) == (_S.ARCHIVED, _S.DISCARDED)
            if move.letter_id == letter_id and move.after is status and not is_restored:
                return move.before
        return None

    def _is_allowed(self, view: LetterView, to: LetterStatus) -> bool:
        is_restored = view.status in _CLOSED_BY_HAND and to is self.before(view.letter.id, view.status)
        return is_restored or to in _BY_HAND[view.status]

    def _is_new(self, letter: Letter) -> bool:
        return letter.id not in self._known


def _kept(letter: Letter) -> Letter:
    texts = {name: getattr(letter, name) for name in _TEXTS}
    kept = {
        name: None if text is None else kept_text(text, _CAPS.get(name, _NAME_BYTES)) for name, text in texts.items()
    }
    return replace(letter, **kept)  # type: ignore[arg-type]  # each under its own name


def _age(view: LetterView) -> tuple[datetime, UUID]:
    return view.created_at, view.letter.id


def _cursor(last: LetterView) -> str:
    return f"{last.created_at.isoformat()} {last.letter.id}"


def _position(cursor: str) -> tuple[datetime, UUID]:
    at, _, letter_id = cursor.partition(" ")
    try:
        return datetime.fromisoformat(at), UUID(letter_id)
    except ValueError as error:
        raise ConfigurationError("the cursor was not given by a page of letters") from error


def _matches(view: LetterView, wanted: LetterFilter) -> bool:
    letter = view.letter
    wishes: Sequence[tuple[str | bytes | None, tuple[str | bytes | None, ...]]] = (
        (wanted.pipeline, (letter.pipeline,)),
        (wanted.topic, (letter.topic,)),
        (wanted.status, (view.status,)),
        (wanted.error_class, (letter.error_class, letter.error_root_class)),
        (wanted.fingerprint, (letter.fingerprint,)),
        (wanted.key, (letter.key,)),
    )
    return (
        all(wish is None or _kept_wish(wish) in values for wish, values in wishes)
        and (wanted.since is None or view.created_at >= wanted.since)
        and (wanted.until is None or view.created_at < wanted.until)
    )


def _kept_wish(wish: str | bytes) -> str | bytes:
    return kept_text(wish) if isinstance(wish, str) else wish

"""Makes the letter of a failed record: identity, the error in words that are safe to keep, fingerprint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from outboxd import ids
from outboxd.errors import PluginBroken
from outboxd.pipeline.letters.causes import class_name, root_of
from outboxd.pipeline.letters.fingerprint import fingerprint
from outboxd.pipeline.letters.text import MESSAGE_BYTES, TRACEBACK_BYTES, error_message, error_traceback, safe_text
from outboxd.records import Letter, OutboxRow, RawRecord, Stage, TimestampType

__all__ = ["FailureFacts", "LetterHooks", "Origin", "make_letter", "make_row_letter", "traceparent_of"]

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_SHORT_BYTES: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where letters of one pipeline come from; ``group`` is None for a relay, ``handler`` the handler's id."""

    cluster_id: str
    pipeline: str
    group: str | None
    handler: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFacts:
    """Why a record becomes a letter: its last error, the calls of the handler, and what decided (`Decision.rule`)."""

    error: BaseException
    stage: Stage
    attempts: int
    first_failed_at: datetime
    last_failed_at: datetime
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterHooks:
    """The plugin hooks `outboxd_redact` and `outboxd_fingerprint` as plain callables; None leaves the letter as it is.

    ``mask`` takes the configuration's own secrets out of a text (invariant 11); it is applied before `redact`.
    """

    redact: Callable[[Letter], Letter | None] = lambda _: None
    fingerprint: Callable[[Letter], str | None] = lambda _: None
    mask: Callable[[str], str] = str


NO_HOOKS: Final = LetterHooks()


def make_letter(record: RawRecord, facts: FailureFacts, origin: Origin, hooks: LetterHooks = NO_HOOKS) -> Letter:
    """The letter of a consumed record; the same id each time this record fails in this group (invariant 6).

    Nothing that the error does (a raising ``__str__``, any text in its message) makes it fail. Raises PluginBroken when
    a redact hook does: the letter must neither be lost nor written with what was to be taken out.
    """
    letter_id = ids.record_letter_id(origin.cluster_id, origin.group or origin.pipeline, record)
    return _finish(_letter(letter_id, record, facts, origin), hooks)


def make_row_letter(
    row: OutboxRow, identity: str, facts: FailureFacts, origin: Origin, hooks: LetterHooks = NO_HOOKS
) -> Letter:
    """The letter of an outbox row that cannot be published; ``identity`` is what `ids.row_identity` gives for it.

    Raises PluginBroken when a redact hook does.
    """
    record = RawRecord(
        topic=row.topic,
        partition=-1,
        offset=-1,
        timestamp=-1 if row.timestamp is None else row.timestamp,
        timestamp_type=TimestampType.NONE if row.timestamp is None else TimestampType.CREATE_TIME,
        key=row.key,
        value=row.value,
        headers=row.headers,
    )
    letter_id = ids.row_letter_id(origin.cluster_id, origin.pipeline, row, identity)
    return _finish(replace(_letter(letter_id, record, facts, origin), outbox_id=identity), hooks)


def _letter(letter_id: UUID, record: RawRecord, facts: FailureFacts, origin: Origin) -> Letter:
    return Letter(
        id=letter_id,
        pipeline=origin.pipeline,
        group=origin.group,
        handler=origin.handler,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp=record.timestamp,
        timestamp_type=record.timestamp_type,
        key=record.key,
        value=record.value,
        headers=record.headers,
        stage=facts.stage,
        error_class=safe_text(class_name(type(facts.error)), _SHORT_BYTES),
        error_root_class=safe_text(class_name(type(root_of(facts.error))), _SHORT_BYTES),
        error_message=error_message(facts.error),
        error_traceback=error_traceback(facts.error),
        attempts=facts.attempts,
        first_failed_at=facts.first_failed_at,
        last_failed_at=facts.last_failed_at,
        rule=safe_text(facts.rule, _SHORT_BYTES),
        fingerprint=fingerprint(origin.handler, facts.error),
        traceparent=traceparent_of(record),
    )


def traceparent_of(record: RawRecord) -> str | None:
    """The W3C trace context of the record; None when there is none or it is garbage."""
    value = record.headers.get("traceparent")
    if value is None:
        return None
    text = value.decode("ascii", "replace").strip()
    return text if len(text) <= 256 and _TRACEPARENT.fullmatch(text) else None


def _finish(letter: Letter, hooks: LetterHooks) -> Letter:
    masked = replace(
        letter,
        error_message=safe_text(hooks.mask(letter.error_message), MESSAGE_BYTES),
        error_traceback=safe_text(hooks.mask(letter.error_traceback), TRACEBACK_BYTES),
    )
    return _refined(_redacted(masked, hooks), hooks)


def _redacted(letter: Letter, hooks: LetterHooks) -> Letter:
    try:
        redacted = hooks.redact(letter)
    except Exception as error:
        raise PluginBroken(
            f"a redact hook raised {class_name(type(error))} for letter {letter.id}; it was not written anywhere",
            suggestion="mend or uninstall the plugin that implements outboxd_redact, then restart the pipeline",
        ) from error
    if redacted is None:
        return letter
    # A hook takes contents out; what the letter is called and where its record stood stays (invariant 6).
    return replace(
        redacted,
        id=letter.id,
        pipeline=letter.pipeline,
        group=letter.group,
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        error_message=safe_text(redacted.error_message, MESSAGE_BYTES),
        error_traceback=safe_text(redacted.error_traceback, TRACEBACK_BYTES),
    )


def _refined(letter: Letter, hooks: LetterHooks) -> Letter:
    try:
        finer = hooks.fingerprint(letter)
    except Exception:  # noqa: BLE001 - our own fingerprint is as good; the hook's caller logs what its plugins raise
        return letter
    return letter if not isinstance(finer, str) else replace(letter, fingerprint=safe_text(finer, _SHORT_BYTES))

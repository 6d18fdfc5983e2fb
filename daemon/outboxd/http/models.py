"""What the API takes and gives, as models: they are its documentation, too."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Literal, Self
from uuid import UUID

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field

from outboxd.config import Problem
from outboxd.lifecycle import PipelineState, TargetState
from outboxd.ports import LetterFilter, LetterView, ReplayJob, Target
from outboxd.records import LetterStatus
from outboxd.runtime.reload import ReloadState
from outboxd.runtime.status import PipelineStatus

__all__ = [
    "ChangeBody",
    "ConfigurationBody",
    "LetterBody",
    "LetterList",
    "LetterQuery",
    "LetterSummary",
    "PipelineBody",
    "PipelineList",
    "ReloadBody",
    "ReplayBody",
    "ReplayRequest",
    "StatusBody",
    "TargetBody",
]


def _storable(text: str) -> str:
    if "\x00" in text or not text.isprintable():
        raise ValueError("must be printable text")
    return text


Text = Annotated[str, Field(max_length=1000), AfterValidator(_storable)]
Scope = Literal["this replica", "all replicas"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, hide_input_in_errors=True)


class StatusBody(_Model):
    """How a pipeline of this replica is."""

    name: str
    kind: str
    target: TargetState
    state: PipelineState
    reason: str | None
    """Stable code of why it is so; null when there is nothing to say."""
    message: str | None
    since: datetime
    """When it came into this state."""
    restarts: int
    """Starts after the first one since the process began."""
    detail: dict[str, object]

    @classmethod
    def of(cls, status: PipelineStatus) -> Self:
        """The status as JSON shows it."""
        return cls(
            name=status.name,
            kind=status.kind,
            target=status.target,
            state=status.state,
            reason=status.reason,
            message=status.message,
            since=status.since,
            restarts=status.restarts,
            detail={str(key): _plain(value) for key, value in status.detail.items()},
        )


class TargetBody(_Model):
    """What is wanted of a pipeline, and who said so."""

    state: TargetState
    actor: str
    at: datetime
    reason: str | None

    @classmethod
    def of(cls, target: Target) -> Self:
        """The target as JSON shows it."""
        return cls(state=target.state, actor=target.actor, at=target.at, reason=target.reason)


class PipelineBody(_Model):
    """A pipeline with its target and its status."""

    name: str
    kind: str
    target: TargetBody | None
    """Null while the target states have not been read."""
    status: StatusBody
    scope: Scope
    """How far a change of the target reaches."""


class ProblemBody(_Model):
    """One thing that is wrong with the configuration."""

    file: str
    line: int
    column: int
    code: str
    message: str
    suggestion: str

    @classmethod
    def of(cls, problem: Problem) -> Self:
        """The problem as JSON shows it."""
        place = problem.place
        return cls(
            file=place.file,
            line=place.line,
            column=place.column,
            code=problem.code,
            message=problem.said,
            suggestion=problem.suggestion,
        )


class ReloadBody(_Model):
    """What came of the last reading of the configuration; the start counts as one."""

    mode: Literal["watch", "off"]
    is_successful: bool
    """False: the files are wrong, and the configuration before them is in force."""
    read_at: datetime
    succeeded_at: datetime
    problems: list[ProblemBody]
    added: list[str]
    """Pipelines that the last successful reading began, restarted and ended."""
    changed: list[str]
    removed: list[str]
    needs_restart: list[str]
    """Settings of the process that differ from those it was started with."""

    @classmethod
    def of(cls, state: ReloadState) -> Self:
        """The state as JSON shows it."""
        return cls(
            mode=state.mode,
            is_successful=state.is_successful,
            read_at=state.read_at,
            succeeded_at=state.succeeded_at,
            problems=[ProblemBody.of(each) for each in state.problems],
            added=list(state.added),
            changed=list(state.changed),
            removed=list(state.removed),
            needs_restart=list(state.needs_restart),
        )


class ConfigurationBody(_Model):
    """What is in force, and whether that is what the files say."""

    configuration: dict[str, object]
    """The merged YAML; what came from the environment or a file is shown as its placeholder."""
    reload: ReloadBody


class PipelineList(_Model):
    """Every pipeline of this replica, and whether its configuration is what the files say."""

    items: list[StatusBody]
    scope: Scope
    reload: ReloadBody


class ChangeBody(_Model):
    """Why a target is changed."""

    reason: Text | None = None


class LetterQuery(_Model):
    """Which letters; all filters must match."""

    pipeline: Text | None = None
    topic: Text | None = None
    status: LetterStatus | None = None
    error_class: Text | None = None
    fingerprint: Text | None = None
    key: Text | None = None
    """The message key as text."""
    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    cursor: Text | None = None

    def filter(self) -> LetterFilter:
        """The filter that the homes understand."""
        return LetterFilter(
            pipeline=self.pipeline,
            topic=self.topic,
            status=self.status,
            error_class=self.error_class,
            fingerprint=self.fingerprint,
            key=None if self.key is None else self.key.encode(),
            since=self.since,
            until=self.until,
        )


class LetterSummary(_Model):
    """A letter in a list: without value, headers and traceback."""

    id: UUID
    status: LetterStatus
    pipeline: str
    group: str | None
    handler: str
    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since the epoch; -1 for none."""
    timestamp_type: str
    key: str | None
    """Base64."""
    key_text: str | None
    """The key as text, where it is UTF-8."""
    stage: str
    error_class: str
    error_root_class: str
    error_message: str
    rule: str
    fingerprint: str
    sink: str
    """The sink that took it first."""
    attempts: int
    """Calls of the handler."""
    replay_count: int
    first_failed_at: datetime
    last_failed_at: datetime
    created_at: datetime
    updated_at: datetime
    outbox_id: str | None

    @staticmethod
    def fields_of(view: LetterView) -> dict[str, object]:
        """The fields of a summary."""
        letter = view.letter
        return {
            "id": letter.id,
            "status": view.status,
            "pipeline": letter.pipeline,
            "group": letter.group,
            "handler": letter.handler,
            "topic": letter.topic,
            "partition": letter.partition,
            "offset": letter.offset,
            "timestamp": letter.timestamp,
            "timestamp_type": letter.timestamp_type.value,
            "key": _base64(letter.key),
            "key_text": _text(letter.key),
            "stage": letter.stage.value,
            "error_class": letter.error_class,
            "error_root_class": letter.error_root_class,
            "error_message": letter.error_message,
            "rule": letter.rule,
            "fingerprint": letter.fingerprint,
            "sink": view.sink,
            "attempts": letter.attempts,
            "replay_count": view.replay_count,
            "first_failed_at": letter.first_failed_at,
            "last_failed_at": letter.last_failed_at,
            "created_at": view.created_at,
            "updated_at": view.updated_at,
            "outbox_id": letter.outbox_id,
        }

    @classmethod
    def of(cls, view: LetterView) -> Self:
        """The letter as a list shows it."""
        return cls.model_validate(cls.fields_of(view))


class HeaderBody(_Model):
    """One header of a record; a name may occur several times."""

    name: str
    value: str | None
    """Base64; null is Kafka's null."""
    text: str | None
    """The value as text, where it is UTF-8."""


class LetterBody(LetterSummary):
    """A whole letter."""

    value: str | None
    """Base64."""
    value_text: str | None
    headers: list[HeaderBody]
    error_traceback: str
    traceparent: str | None

    @classmethod
    def of(cls, view: LetterView) -> Self:
        """The letter as JSON shows it."""
        letter = view.letter
        return cls.model_validate(
            cls.fields_of(view)
            | {
                "value": _base64(letter.value),
                "value_text": _text(letter.value),
                "headers": [
                    HeaderBody(name=_clean(name), value=_base64(value), text=_text(value))
                    for name, value in letter.headers
                ],
                "error_traceback": letter.error_traceback,
                "traceparent": letter.traceparent,
            }
        )


class LetterList(_Model):
    """A page of letters; ``next`` is the cursor of the next one, null at the end."""

    items: list[LetterSummary]
    next: str | None


class Selection(_Model):
    """The letters of a replay."""

    ids: Annotated[list[UUID], Field(min_length=1, max_length=10_000)]


class ReplayRequest(_Model):
    """A replay to be made."""

    select: Selection
    mode: Literal["in_place"] = "in_place"
    """The handler runs again in the pipeline that failed."""


class ReplayBody(_Model):
    """A replay job and how far it is."""

    id: UUID
    state: str
    mode: str
    total: int
    sent: int
    resolved: int
    failed: int
    created_at: datetime
    actor: str
    reason: str | None
    """Why it waits."""
    letters: list[UUID]

    @classmethod
    def of(cls, job: ReplayJob) -> Self:
        """The job as JSON shows it."""
        return cls(
            id=job.id,
            state=job.state,
            mode=job.mode,
            total=job.total,
            sent=job.sent,
            resolved=job.resolved,
            failed=job.failed,
            created_at=job.created_at,
            actor=job.actor,
            reason=job.reason,
            letters=list(job.letters),
        )


def _base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _text(data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return None


def _clean(text: str) -> str:
    """A header name that is not text came in with surrogates; JSON shows them as replacement characters."""
    return text.encode("utf-8", "replace").decode()


def _plain(value: object) -> object:
    """What JSON can show: details are for people, so anything else is shown as text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in value]
        case _:
            return str(value)

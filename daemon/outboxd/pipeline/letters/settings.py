"""Settings of classification, retries, the breaker and the dead-letter chain: the YAML's `errors` and `dead_letters`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from outboxd.api.annotations import AlsoWrittenAs, Later
from outboxd.api.references import PluginKind, PluginUse
from outboxd.api.settings import PluginSettings, PositiveDuration
from outboxd.records import Stage, Verdict

__all__ = [
    "DeadLetterSettings",
    "ErrorSettings",
    "FloodSettings",
    "OutageSettings",
    "RetentionSettings",
    "RetrySettings",
    "RuleSettings",
    "SinkSettings",
    "WhenSettings",
]

_T = TypeVar("_T")


def _as_list(value: object) -> object:
    return value if isinstance(value, list | tuple) else [value]


OneOrMany = Annotated[
    tuple[_T, ...], Field(strict=False, min_length=1), BeforeValidator(_as_list), AlsoWrittenAs("item")
]
"""A value, or a list of values of which any matches."""


def _exception_name(name: str) -> str:
    if not all(part.isidentifier() or part == "<locals>" for part in name.split(".")):
        raise ValueError(
            'an exception is named as a traceback prints it, such as "package.module.Class" or "ValueError"'
        )
    return name


def _regex(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise PydanticCustomError(
            "regex_invalid", "is no regular expression: {reason}", {"reason": str(error)}
        ) from None
    return pattern


class RetrySettings(PluginSettings):
    """When a failed record's handler is called again, and how long that waits."""

    attempts: Annotated[int, Field(ge=1)] = 5
    """Calls in total, the first included; after the last one the record is dead-lettered."""
    elapsed: PositiveDuration | None = None
    """Dead-letter once so long has passed since the first failure, even with attempts left."""
    initial: PositiveDuration = timedelta(milliseconds=200)
    """The wait after the first failure."""
    factor: Annotated[float, Field(ge=1, le=1000, allow_inf_nan=False)] = 2.0
    """What each wait is multiplied by for the next one."""
    max: PositiveDuration = timedelta(seconds=30)
    """No wait is longer."""
    jitter: Literal["full", "equal", "none"] = "full"
    """`full` draws from [0, wait], `equal` from [wait / 2, wait], `none` takes the wait itself."""

    @model_validator(mode="after")
    def _grows(self) -> Self:
        if self.initial > self.max:
            raise PydanticCustomError(
                "contradiction", "initial is longer than max: no wait could be as long as initial"
            )
        return self


class WhenSettings(PluginSettings):
    """The condition of a rule: every key that is written must match, of a list any value."""

    exception: OneOrMany[Annotated[str, AfterValidator(_exception_name)]] | None = None
    """Classes as a traceback prints them (`package.module.Class`, builtins bare); subclasses and causes match."""
    message: OneOrMany[Annotated[str, AfterValidator(_regex)]] | None = None
    """Regular expressions that are searched in the message."""
    sqlstate: OneOrMany[Annotated[str, StringConstraints(pattern=r"^[0-9A-Z]{1,5}$")]] | None = None
    """Beginnings of Postgres's five-character codes, in quotes: `"08"`, `"40001"`."""
    http_status: Annotated[OneOrMany[int | str] | None, Later()] = None
    """Status codes (`429`) or classes (`"5xx"`)."""
    stage: OneOrMany[Annotated[Stage, Field(strict=False)]] | None = None
    """Where the record failed: `decode`, `handle`, ..."""

    @model_validator(mode="after")
    def _has_a_key(self) -> Self:
        if not self.model_fields_set:
            raise PydanticCustomError("incomplete", "an empty `when` would match every error: say so with `otherwise`")
        return self


class RuleSettings(PluginSettings):
    """One rule: when it matches, then that."""

    when: WhenSettings
    """The condition."""
    then: Annotated[Verdict, Field(strict=False)]
    """What becomes of the record: `retry`, `dead_letter`, `skip`, `pause` or `stop`."""


class OutageSettings(PluginSettings):
    """The breaker: when many records fail and none succeeds, the pipeline waits instead of dead-lettering."""

    failures: Annotated[int, Field(ge=1)] = 5
    """So many distinct records, of at least two keys, must fail retryably ..."""
    within: PositiveDuration = timedelta(seconds=30)
    """... within this window with no success in it."""
    probe_every: PositiveDuration = timedelta(seconds=5)
    """While the breaker is open one record is tried this often."""


class ErrorSettings(PluginSettings):
    """What becomes of a record that fails."""

    retry: RetrySettings = RetrySettings()
    """How often and when the handler is called again."""
    rules: Annotated[tuple[RuleSettings, ...], Field(strict=False)] = ()
    """Asked in order; the first that matches decides. Then what is built in, classifier plugins, then `otherwise`."""
    otherwise: Annotated[Verdict, Field(strict=False)] = Verdict.RETRY
    """When nothing else decided."""
    outage: OutageSettings = OutageSettings()
    """The breaker."""


class SinkSettings(PluginUse):
    """A sink of the chain: `type`, that plugin's options, and what every sink has."""

    kind: ClassVar[PluginKind] = "sink"
    deadline: PositiveDuration = timedelta(seconds=5)
    """How long the sink may take for a write, connecting included, before the next one is asked."""
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = ""
    """What the sink is called in letters and metrics; unique in its chain. Default: its type, with `-2` and so on."""
    drain: bool = True
    """Whether letters are carried from here to the chain's home, where there is one."""


class FloodSettings(PluginSettings):
    """When a pipeline pauses instead of filling the store with letters."""

    letters: Annotated[int, Field(ge=1)] = 10_000
    """So many letters ..."""
    within: PositiveDuration = timedelta(minutes=10)
    """... within this window ..."""
    ratio: Annotated[float, Field(ge=0, le=1)] = 0.5
    """... that are at least this share of the records."""


class RetentionSettings(PluginSettings):
    """How long closed letters are kept, from their move into the status; open letters stay."""

    resolved: PositiveDuration = timedelta(days=30)
    """Letters whose record was handled after all."""
    discarded: PositiveDuration = timedelta(days=30)
    """Letters that somebody discarded."""
    archived: PositiveDuration = timedelta(days=365)
    """Letters that were archived."""


class DeadLetterSettings(PluginSettings):
    """Where dead letters go."""

    keep_order: Annotated[bool, Later()] = False
    """Whether later records of a dead-lettered key are parked behind it."""
    parked_max: Annotated[int, Later()] = 10_000
    """The most records that are parked per key."""
    parked_overflow: Annotated[Literal["wait", "letter"], Later()] = "wait"
    """What happens when a key has parked so many."""
    exhausted: Literal["wait", "stop"] = "wait"
    """When no sink takes a letter: the partition waits, or the pipeline stops."""
    flood: Annotated[FloodSettings, Later()] = FloodSettings()
    """When the pipeline pauses instead of writing more letters."""
    retention: Annotated[RetentionSettings, Later()] = RetentionSettings()
    """How long closed letters are kept."""
    replay_to: Annotated[tuple[str, ...], Later()] = ()
    """Topics that replays may publish to, beside the pipeline's own."""
    retry_topic: Annotated[bool, Later()] = False
    """Whether the pipeline has a topic of its own for replays."""
    edit: Annotated[bool, Later()] = False
    """Whether letters may be edited before a replay."""
    chain: Annotated[tuple[SinkSettings, ...], Field(strict=False)] = ()
    """Sinks, tried in order. Default: the Postgres connection that the pipeline already knows, else `{topic}.dlq`
    on its Kafka connection."""

    @model_validator(mode="before")
    @classmethod
    def _name_the_sinks(cls, data: object) -> object:
        """Give each sink without a name its type, numbered where that is taken, so that names are unique and stable."""
        if not isinstance(data, dict) or not isinstance(data.get("chain"), list):
            return data
        return {**data, "chain": _named(data["chain"])}

    @model_validator(mode="after")
    def _has_unique_names(self) -> Self:
        names = [sink.name for sink in self.chain if sink.name]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise PydanticCustomError(
                "duplicate_name", "two sinks of the chain are called {names}", {"names": ", ".join(repeated)}
            )
        return self


def _named(chain: Sequence[object]) -> list[object]:
    taken = {sink["name"] for sink in chain if isinstance(sink, dict) and isinstance(sink.get("name"), str)}
    named: list[object] = []
    for sink in chain:
        if isinstance(sink, dict) and "name" not in sink and isinstance(sink.get("type"), str):
            kind = sink["type"]
            name = next(name for number in range(1, len(chain) + 2) if (name := _numbered(kind, number)) not in taken)
            taken.add(name)
            sink = {**sink, "name": name}  # noqa: PLW2901  # the sink, with its name
        named.append(sink)
    return named


def _numbered(kind: str, number: int) -> str:
    return kind if number == 1 else f"{kind}-{number}"

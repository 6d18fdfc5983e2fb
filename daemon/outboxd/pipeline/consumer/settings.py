"""Settings of a consumer pipeline: the YAML's `consume`, `handler`, `errors` and `dead_letters`."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from outboxd.api.annotations import Later
from outboxd.api.references import PluginKind, PluginUse
from outboxd.api.settings import (
    KafkaConnectionName,
    PluginSettings,
    PositiveDuration,
    PostgresConnectionName,
    Size,
    parse_size,
)
from outboxd.pipeline.letters.settings import DeadLetterSettings, ErrorSettings

__all__ = ["BatchSettings", "CodecSettings", "ConsumeSettings", "ConsumerSettings", "HandlerSettings"]

TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
"""A topic's name, as Kafka has it."""


class CodecSettings(PluginUse):
    """The codec: a name, or `type` and that plugin's options."""

    kind: ClassVar[PluginKind] = "codec"


class ConsumeSettings(PluginSettings):
    """What is read, in which group, and how much at once."""

    connection: KafkaConnectionName
    """The Kafka connection to read from."""
    topics: Annotated[tuple[TopicName, ...], Field(strict=False, min_length=1)]
    """The topics to read."""
    pattern: Annotated[str | None, Later()] = None
    """A regular expression of topics to read, in place of `topics`."""
    group: Annotated[str, StringConstraints(min_length=1, max_length=255)] = ""
    """The consumer group. Default: the pipeline's name; two pipelines may not share one."""
    start: Literal["earliest", "latest", "fail"] = "earliest"
    """Where the group starts in a topic that it sees for the first time; `fail` stops the pipeline."""
    order: Annotated[Literal["key", "partition", "none"], Later(allowed=("key",))] = "key"
    """`key`: records of one key in the order of their offsets, keys in parallel."""
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Handler calls at once, per pipeline and replica."""
    max_pending: Annotated[int, Field(ge=1)] = 10_000
    """Records held per consumer; at this many its partitions pause."""
    max_pending_bytes: Size = parse_size("64MiB")
    """Bytes held per consumer; at this many its partitions pause."""
    commit_every: PositiveDuration = timedelta(milliseconds=500)
    """How often offsets are committed."""
    session_timeout: PositiveDuration = timedelta(seconds=30)
    """When a silent member is taken for dead."""
    max_poll_interval: PositiveDuration = timedelta(minutes=5)
    """How long the client may go without polling. Handlers and waits do not count: polling goes on meanwhile."""
    rebalance_timeout: PositiveDuration = timedelta(seconds=60)
    """How long a rebalance waits for members to finish what they have in hand."""
    journal: Annotated[str, Later()] = "metadata"
    """Where offsets that were completed past a gap are kept."""
    decode: CodecSettings = Field(default=cast("CodecSettings", "json"), validate_default=True)
    """The codec of values: `raw`, `json`, `text` or one from a plugin."""
    undecodable: Annotated[Literal["letter", "park"], Later()] = "letter"
    """What happens to records that the Kafka client itself cannot read."""

    @model_validator(mode="after")
    def _timeouts_fit(self) -> Self:
        if self.commit_every > self.session_timeout:
            raise PydanticCustomError("contradiction", "commit_every is longer than session_timeout")
        if self.session_timeout > self.max_poll_interval:
            raise PydanticCustomError("contradiction", "session_timeout is longer than max_poll_interval")
        return self


class BatchSettings(PluginSettings):
    """How records are gathered for a batch handler."""

    max_records: Annotated[int, Field(ge=1)] = 100
    """The most records of a batch."""
    max_wait: PositiveDuration = timedelta(milliseconds=100)
    """The longest wait for a batch to fill."""


class HandlerSettings(PluginUse):
    """The handler: `type`, that plugin's options, and what every handler has."""

    kind: ClassVar[PluginKind] = "handler"
    timeout: PositiveDuration = timedelta(seconds=30)
    """How long one call may take; then it failed with HandlerTimeout."""
    transaction: Annotated[PostgresConnectionName | None, Later()] = None
    """A Postgres connection whose open transaction the handler is given; repeats are then recognised and skipped."""
    batch: Annotated[BatchSettings | None, Later()] = None
    """For batch handlers: how records are gathered."""


class ConsumerSettings(PluginSettings):
    """A consumer: records of topics are handed to a handler."""

    consume: ConsumeSettings
    """What is read, in which group, and how much at once."""
    handler: HandlerSettings
    """What each record is handed to."""
    errors: ErrorSettings = ErrorSettings()
    """What becomes of a record that fails."""
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    """Where dead letters go."""

"""Settings of a relay pipeline: the YAML's `outbox`, `publish` and `dead_letters`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from outboxd.api.annotations import AlsoWrittenAs, Later
from outboxd.api.references import PluginKind, PluginUse
from outboxd.api.settings import KafkaConnectionName, PluginSettings, PositiveDuration, PostgresConnectionName
from outboxd.pipeline.letters.settings import DeadLetterSettings

__all__ = ["ActionSettings", "ColumnSettings", "OutboxSettings", "PublishSettings", "RelaySettings", "TopicSettings"]

TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
"""A topic's name, as Kafka has it."""
TableName = Annotated[
    str, StringConstraints(pattern=r'^([A-Za-z_][\w$]*|"([^"]|"")+")(\.([A-Za-z_][\w$]*|"([^"]|"")+"))?$')
]
"""A table's name, with or without its schema, quoted where it must be."""


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise PydanticCustomError("not_a_power_of_two", "must be a power of two: 1, 2, 4, 8, 16, 32 or 64")
    return value


class ColumnSettings(PluginSettings):
    """Where a table of another shape keeps what a row needs: column names or SQL expressions."""

    id: str = "id"
    """Ascending identity."""
    topic: str = "topic"
    """The topic to publish to."""
    key: str = "key"
    """The record's key."""
    payload: str = "payload"
    """The record's value; NULL is a tombstone."""
    headers: str = "headers"
    """The record's headers."""
    timestamp: str = "created_at"
    """The record's timestamp."""


class OutboxSettings(PluginSettings):
    """The table that rows are read from."""

    connection: PostgresConnectionName
    """The Postgres connection that the table is in."""
    table: TableName = "outboxd.outbox"
    """The table; one with the columns of `outboxd.outbox`."""
    columns: Annotated[ColumnSettings, Later()] = ColumnSettings()
    """Where a table of another shape keeps what a row needs."""
    where: Annotated[str | None, Later()] = None
    """An extra condition on rows."""
    done: Literal["delete", "mark"] = "delete"
    """What happens to a published row: deleted, or marked with `published_at`."""
    mark: Annotated[Mapping[str, str], Later()] = {"published_at": "now()"}
    """With `done: mark`, the columns that are set."""
    pending: Annotated[str | None, Later()] = None
    """The condition that a row is still to be published."""
    order: Annotated[Literal["key", "none"], Later(allowed=("key",))] = "key"
    """`key`: rows of one key in the order of their ids."""
    listen: Annotated[bool, Later()] = False
    """Whether LISTEN wakes the relay."""
    poll_max: PositiveDuration = timedelta(milliseconds=50)
    """The longest pause between two looks at an idle table."""
    sweep: PositiveDuration = timedelta(seconds=5)
    """How often the table is read from its lowest id, for rows that were committed late."""
    lease: PositiveDuration = timedelta(seconds=10)
    """How long an owner that went silent keeps its shards."""
    retention: Annotated[PositiveDuration | None, Later()] = None
    """With `done: mark`, rows that were marked longer ago than this are deleted."""


class ActionSettings(PluginUse):
    """An action after publishing: `type`, that plugin's options, and its deadline."""

    kind: ClassVar[PluginKind] = "action"
    timeout: PositiveDuration = timedelta(seconds=30)
    """How long one call may take."""


class TopicSettings(PluginSettings):
    """What belongs to one topic."""

    after_publish: Annotated[tuple[ActionSettings, ...], Field(strict=False)] = ()
    """Actions, in order; all must succeed before a row counts as done."""


def _topics(value: object) -> object:
    """A topic without anything, written `orders.new:` or `orders.new: {}`."""
    if not isinstance(value, dict):
        return value
    return {topic: {} if settings is None else settings for topic, settings in value.items()}


class PublishSettings(PluginSettings):
    """Where and how rows are published."""

    connection: KafkaConnectionName
    """The Kafka connection to publish to."""
    topic: TopicName | None = None
    """A fixed topic for every row; default: the row's own."""
    compression: Literal["zstd", "lz4", "snappy", "gzip", "none"] = "zstd"
    """How batches are compressed."""
    send_deadline: PositiveDuration = timedelta(seconds=30)
    """When a send has not been acknowledged after this, its outcome is unknown and the rows are sent again."""
    fencing: Annotated[Literal["epoch", "time"], Later(allowed=("epoch",))] = "epoch"
    """How an owner that lost its shard is kept from writing: `epoch` by the broker."""
    shards: Annotated[int, Field(ge=1, le=64), AfterValidator(_power_of_two)] = 8
    """A power of two up to 64: the most replicas that can share the work."""
    on_poison: Annotated[Literal["block_key", "dead_letter", "skip"], Later(allowed=("block_key",))] = "block_key"
    """What happens to a row that can never be published: `block_key` holds it and its key, visibly."""
    topics: Annotated[
        Mapping[TopicName, Annotated[TopicSettings, AlsoWrittenAs("null")]] | None, BeforeValidator(_topics)
    ] = None
    """The topics that rows may name; a row for any other topic is poison. Default: any topic, without actions."""


class RelaySettings(PluginSettings):
    """A relay: rows of a table become records of topics."""

    outbox: OutboxSettings
    """The table that rows are read from."""
    publish: PublishSettings
    """Where and how they are published."""
    dead_letters: Annotated[DeadLetterSettings, Later()] = DeadLetterSettings()
    """With `on_poison: dead_letter`, where such rows go."""

"""What the configuration leaves out and can be known: the group, and where dead letters go."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from outboxd.config.reflection import connection_names
from outboxd.config.source import Source, at, put
from outboxd.errors import PluginError
from outboxd.kafka.settings import KafkaSettings
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.letters.settings import DeadLetterSettings
from outboxd.postgres.settings import PostgresSettings
from outboxd.registry import Registry

__all__ = ["Connection", "default_group", "with_default_chain"]

Connection = PostgresSettings | KafkaSettings


def default_group(source: Source, pipeline: str) -> None:
    """The group of a consumer that names none is the pipeline's name."""
    consume = at(source.data, ("pipelines", pipeline, "consume"))
    if isinstance(consume, dict) and "group" not in consume:
        put(source.data, ("pipelines", pipeline, "consume", "group"), pipeline)


def with_default_chain(
    settings: ConsumerSettings, connections: Mapping[str, Connection], registry: Registry
) -> ConsumerSettings:
    """A consumer without a chain gets one: Postgres where it can be known, then `{topic}.dlq` on its own Kafka.

    The Postgres connection is the one that the handler's options name, else the only one of the configuration; with
    none or several to choose from, letters go to the topic alone. A topic that the pipeline itself reads is left out.
    """
    if settings.dead_letters.chain:
        return settings
    sinks: list[dict[str, str]] = []
    home = _known_postgres(settings, connections)
    if home is not None:
        sinks.append({"type": "postgres", "connection": home})
    topics = settings.consume.topics
    if not {f"{topic}.dlq" for topic in topics} & set(topics):
        sinks.append({"type": "kafka", "connection": settings.consume.connection, "topic": "{topic}.dlq"})
    written = {name: getattr(settings.dead_letters, name) for name in settings.dead_letters.model_fields_set}
    try:
        made = DeadLetterSettings.model_validate({**written, "chain": sinks}, context={"resolver": registry})
    except (ValidationError, PluginError):  # a first-party sink is not installed: reported as a missing chain
        return settings
    return settings.model_copy(update={"dead_letters": made})


def _known_postgres(settings: ConsumerSettings, connections: Mapping[str, Connection]) -> str | None:
    named = [name for _, name, reference in connection_names(settings.handler, ()) if reference.type == "postgres"]
    known = [name for name, connection in connections.items() if isinstance(connection, PostgresSettings)]
    if named:
        return named[0]
    return known[0] if len(known) == 1 else None

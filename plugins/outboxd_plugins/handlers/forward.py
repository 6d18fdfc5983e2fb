"""Handler `forward`: publishes each record to another topic, unchanged."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import StringConstraints

from outboxd.api import HandlerContext, KafkaConnectionName, PluginContext, PluginSettings, Record, StatelessPlugin

__all__ = ["ForwardHandler", "ForwardHandlerSettings"]


class ForwardHandlerSettings(PluginSettings):
    """Settings of handler `forward`."""

    connection: KafkaConnectionName
    """The Kafka connection to publish to."""
    topic: Annotated[str, StringConstraints(min_length=1)]
    """The topic to publish to; `{topic}` stands for the record's own topic."""


class ForwardHandler(StatelessPlugin):
    """Publishes key, value, headers and timestamp as they are; handled once the broker acknowledged.

    At least once: a record that is handled again after a crash is published again.
    """

    Settings: ClassVar[type[PluginSettings]] = ForwardHandlerSettings

    def __init__(self, settings: ForwardHandlerSettings, context: PluginContext) -> None:
        super().__init__(settings, context)
        self._topic = settings.topic
        self._kafka = context.connections.kafka(settings.connection)

    async def handle(self, record: Record, context: HandlerContext) -> None:  # noqa: ARG002  # the protocol's signature
        """Publish the record. Raises BrokerError."""
        await self._kafka.send(
            self._topic.replace("{topic}", record.topic),
            key=record.key,
            value=record.raw_value,
            headers=record.headers,
            timestamp=record.timestamp if record.timestamp >= 0 else None,
        )

"""Makes the clients of one Kafka connection."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from outboxd.kafka.admin import KafkaAdmin
from outboxd.kafka.consumer import KafkaConsumer
from outboxd.kafka.library_logs import limit_library_logs
from outboxd.kafka.producer import KafkaRelayProducer
from outboxd.kafka.security import ClientOptions, ConnectionSettings
from outboxd.kafka.sender import KafkaSender

__all__ = ["KafkaBroker"]


class KafkaBroker:
    """`outboxd.ports.BrokerFactory` for the settings of a Kafka connection. Raises ConfigurationError."""

    def __init__(self, settings: ConnectionSettings, *, client_id: str = "outboxd") -> None:
        self._options = ClientOptions.of(settings, client_id=client_id)
        limit_library_logs()

    def relay_producer(
        self, transactional_id: str, *, compression: str | None, deadline: timedelta
    ) -> KafkaRelayProducer:
        """A new producer object, to be opened under an epoch of its own; ``deadline`` bounds each send."""
        return KafkaRelayProducer(self._options, transactional_id, compression=compression, deadline=deadline)

    def sender(self, *, deadline: timedelta) -> KafkaSender:
        """A shared producer for single records."""
        return KafkaSender(self._options, deadline=deadline)

    def consumer(
        self,
        *,
        topics: Sequence[str],
        group: str,
        session_timeout: timedelta,
        rebalance_timeout: timedelta,
        max_poll_interval: timedelta,
        instance_id: str | None,
    ) -> KafkaConsumer:
        """A new, unstarted member of ``group``."""
        return KafkaConsumer(
            self._options,
            topics=topics,
            group=group,
            session_timeout=session_timeout,
            rebalance_timeout=rebalance_timeout,
            max_poll_interval=max_poll_interval,
            instance_id=instance_id,
        )

    def admin(self) -> KafkaAdmin:
        """A client for questions."""
        return KafkaAdmin(self._options)

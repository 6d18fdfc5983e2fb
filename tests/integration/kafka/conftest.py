"""Clients of the run's broker that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import timedelta

import pytest
import pytest_asyncio

from outboxd.kafka.broker import KafkaBroker
from outboxd.kafka.producer import KafkaRelayProducer
from outboxd.kafka.settings import KafkaSettings

MakeProducer = Callable[..., KafkaRelayProducer]


def broker_at(bootstrap: str) -> KafkaBroker:
    return KafkaBroker(KafkaSettings(type="kafka", bootstrap_servers=(bootstrap,)))


@pytest.fixture
def broker(kafka_bootstrap: str) -> KafkaBroker:
    return broker_at(kafka_bootstrap)


@pytest_asyncio.fixture
async def make_producer(broker: KafkaBroker) -> AsyncIterator[MakeProducer]:
    """``make_producer(transactional_id)``: not open yet; abandoned after the test."""
    made: list[KafkaRelayProducer] = []

    def make(transactional_id: str, *, deadline: float = 10, at: KafkaBroker = broker) -> KafkaRelayProducer:
        made.append(at.relay_producer(transactional_id, compression="zstd", deadline=timedelta(seconds=deadline)))
        return made[-1]

    yield make
    for producer in made:
        await producer.abandon()

"""What the parts of one relay share: its ports, its servers' state, its topics, and its books."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from outboxd.pipeline.relay.actions import ActionPlans
from outboxd.pipeline.relay.dependencies import Dependency
from outboxd.pipeline.relay.topics import Topics
from outboxd.pipeline.relay.window import Window
from outboxd.ports import Admin, Clock, LeaseStore, OutboxStore, Random, RelayProducer
from outboxd.telemetry.emitter import Event, Telemetry

__all__ = ["Books", "ProducerFactory", "PublishObserver", "RelayContext"]


class ProducerFactory(Protocol):
    """The part of the broker's factory that a relay needs."""

    def relay_producer(self, transactional_id: str, *, compression: str | None, deadline: timedelta) -> RelayProducer:
        """A new producer object; ``deadline`` bounds each `send`."""
        ...


class PublishObserver(Protocol):
    """Told of each acknowledged batch; must not raise."""

    def __call__(self, pipeline: str, topic: str, partition: int, offset: int, count: int) -> None:
        """``offset`` is that of the batch's first record."""
        ...


@dataclass(slots=True)
class Books:
    """What the status tells of the past."""

    possible_duplicates: int = 0
    """Records at the end of logs that a recovery did not read: their rows may have been sent twice."""
    last_publish: datetime | None = None
    published: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayContext:
    """Everything that a shard, a lane or the marker needs, made once per run."""

    pipeline: str
    relay_id: UUID
    owner: str
    lease_time: timedelta
    send_deadline: timedelta
    compression: str | None
    outbox: OutboxStore
    leases: LeaseStore
    brokers: ProducerFactory
    admin: Admin
    clock: Clock
    random: Random
    telemetry: Telemetry
    database: Dependency
    marks: Dependency
    """The database's consent to marks: a trigger, a privilege or a timeout may refuse them while all else goes well."""
    broker: Dependency
    topics: Topics
    plans: ActionPlans
    window: Window
    on_published: PublishObserver | None = None
    books: Books = field(default_factory=Books)

    def emit(self, event: Event) -> None:
        """Write down that this happened."""
        self.telemetry.emit(event)

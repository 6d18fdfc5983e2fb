"""A Kafka in memory: hand it to pipelines as their broker factory, and look into it from a test.

One cluster serves producers, senders, members of groups and questions. Clients keep their own state only and reach the
brokers through `Faults.around`; see `outboxd.testing.fakes.kafka.requests.Disconnected` for what they try again themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextvars import Context
from datetime import timedelta

from outboxd.ports import Clock
from outboxd.records import TopicPartition
from outboxd.testing.fakes.faults import Faults
from outboxd.testing.fakes.kafka.admin import FakeAdmin
from outboxd.testing.fakes.kafka.brokers import Brokers
from outboxd.testing.fakes.kafka.consumer import FakeConsumer
from outboxd.testing.fakes.kafka.group import Group
from outboxd.testing.fakes.kafka.membership import GroupOptions
from outboxd.testing.fakes.kafka.plans import ConsumerPlans
from outboxd.testing.fakes.kafka.producer import FakeProducer
from outboxd.testing.fakes.kafka.sender import FakeSender

__all__ = ["FakeCluster"]


class FakeCluster(Brokers):
    """`outboxd.ports.BrokerFactory` on brokers in memory."""

    def __init__(
        self,
        clock: Clock,
        faults: Faults | None = None,
        topics: Mapping[str, int] | None = None,
        *,
        context: Context | None = None,
    ) -> None:
        super().__init__(clock, faults, topics, context=context)
        self.producers: list[FakeProducer] = []
        """Every relay producer that was made, oldest first."""
        self.consumers: list[FakeConsumer] = []
        """Every member that was made, oldest first."""
        self._plans = ConsumerPlans()

    # -- groups, as a test sees them

    @property
    def groups(self) -> Mapping[str, Group]:
        """Groups by their names, as the brokers know them."""
        return self.coordinator.groups

    @property
    def committed(self) -> dict[tuple[str, TopicPartition], tuple[int, str]]:
        """Committed offsets with their metadata, by group and partition."""
        return self.coordinator.committed

    @property
    def commits(self) -> list[tuple[str, TopicPartition, int]]:
        """Every accepted commit, in order."""
        return self.coordinator.commits

    @property
    def commit_faults(self) -> deque[Exception | None]:
        """What the next commits of any member raise; None lets one through."""
        return self._plans.commit_faults

    @property
    def poll_faults(self) -> dict[TopicPartition, Exception]:
        """What polling a partition raises, until it is taken out."""
        return self._plans.poll_faults

    def offset_of(self, group: str, partition: TopicPartition) -> int | None:
        """The committed offset."""
        found = self.committed.get((group, partition))
        return None if found is None else found[0]

    # -- clients

    def relay_producer(
        self,
        transactional_id: str,
        *,
        compression: str | None,  # noqa: ARG002  # these logs keep records as they are
        deadline: timedelta,
    ) -> FakeProducer:
        """A new producer object, without an epoch until it is opened."""
        producer = FakeProducer(self, transactional_id, deadline)
        self.producers.append(producer)
        return producer

    def sender(self, *, deadline: timedelta) -> FakeSender:
        """A shared producer for single records."""
        return FakeSender(self, deadline)

    def consumer(
        self,
        *,
        topics: Sequence[str],
        group: str,
        session_timeout: timedelta,
        rebalance_timeout: timedelta,
        max_poll_interval: timedelta,  # noqa: ARG002  # the adapter touches its client every second: it never runs out
        instance_id: str | None,
    ) -> FakeConsumer:
        """A new, unstarted member of the group."""
        options = GroupOptions(
            topics=tuple(topics),
            group=group,
            session_timeout=session_timeout.total_seconds(),
            rebalance_timeout=rebalance_timeout.total_seconds(),
            instance_id=instance_id,
        )
        member = FakeConsumer(self, options, self._plans)
        self.consumers.append(member)
        return member

    def admin(self) -> FakeAdmin:
        """A client for questions."""
        return FakeAdmin(self)

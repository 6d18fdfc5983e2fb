"""What pipeline code needs of the outside, as Protocols in the words of the domain.

Each port has a real adapter (`outboxd.kafka`, `outboxd.postgres`, `outboxd.runtime`) and an in-memory double
(`outboxd.testing`). Adapters raise only errors of `outboxd.errors`. Every coroutine here that talks to the outside
keeps a deadline of its own (a constructor's argument of the adapter) and raises BrokerUnreachable,
DatabaseUnreachable or SendOutcomeUnknown when it passes; callers may set a shorter one with ``asyncio.timeout``.
"""

from outboxd.ports.broker import (
    Admin,
    AssignmentListener,
    Batch,
    BrokerFactory,
    ConsumerPort,
    OutboundRecord,
    RelayProducer,
    Sender,
    TopicInfo,
)
from outboxd.ports.leases import Lease, LeaseStore, LeaseToken, Notes
from outboxd.ports.letters import DrainStore, LetterFilter, LetterPage, LetterStore, LetterView, ReplayItem, ReplayJob
from outboxd.ports.outbox import FetchedRows, Mark, OutboxStore, RelayRegistration, SentRow, Statement
from outboxd.ports.process import Clock, Executor, Files, Random
from outboxd.ports.targets import Target, TargetStore

__all__ = [
    "Admin",
    "AssignmentListener",
    "Batch",
    "BrokerFactory",
    "Clock",
    "ConsumerPort",
    "DrainStore",
    "Executor",
    "FetchedRows",
    "Files",
    "Lease",
    "LeaseStore",
    "LeaseToken",
    "LetterFilter",
    "LetterPage",
    "LetterStore",
    "LetterView",
    "Mark",
    "Notes",
    "OutboundRecord",
    "OutboxStore",
    "Random",
    "RelayProducer",
    "RelayRegistration",
    "ReplayItem",
    "ReplayJob",
    "Sender",
    "SentRow",
    "Statement",
    "Target",
    "TargetStore",
    "TopicInfo",
]

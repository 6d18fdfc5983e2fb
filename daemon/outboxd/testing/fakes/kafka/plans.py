"""What a test plans for the members of groups, beside the faults of their calls."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from outboxd.records import TopicPartition

__all__ = ["ConsumerPlans"]


@dataclass(slots=True)
class ConsumerPlans:
    """Errors as the client gives them out, once all its own tries are over."""

    commit_faults: deque[Exception | None] = field(default_factory=deque)
    """What the next commits raise; None lets one through."""
    poll_faults: dict[TopicPartition, Exception] = field(default_factory=dict)
    """What polling a partition raises, until it is taken out."""

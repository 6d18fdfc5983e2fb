"""How a group's leader deals partitions: round robin over the members, as the real client does by default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outboxd.records import TopicPartition

__all__ = ["deal"]


def deal(
    subscriptions: Mapping[str, Sequence[str]], partitions: Sequence[TopicPartition]
) -> dict[str, list[TopicPartition]]:
    """Each member's partitions; ``subscriptions`` are the topics of each member id."""
    members = sorted(subscriptions)
    dealt: dict[str, list[TopicPartition]] = {member: [] for member in members}
    turn = 0
    for partition in sorted(partitions):
        if not any(partition.topic in subscriptions[member] for member in members):
            continue
        while partition.topic not in subscriptions[members[turn % len(members)]]:
            turn += 1
        dealt[members[turn % len(members)]].append(partition)
        turn += 1
    return dealt

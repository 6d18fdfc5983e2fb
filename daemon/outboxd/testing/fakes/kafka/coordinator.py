"""The coordinator of consumer groups: the groups of a cluster, and what they have committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from outboxd.errors import BrokerError
from outboxd.records import TopicPartition
from outboxd.testing.fakes.kafka.group import Group, Host

__all__ = ["Coordinator"]

_LONGEST_METADATA: Final = 4_096


class Coordinator:
    """All groups, and what they have committed."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.groups: dict[str, Group] = {}
        self.committed: dict[tuple[str, TopicPartition], tuple[int, str]] = {}
        self.commits: list[tuple[str, TopicPartition, int]] = []
        """Every accepted commit, in order."""

    def group(self, name: str) -> Group:
        """The group, which comes into being when somebody asks for it."""
        if name not in self.groups:
            self.groups[name] = Group(self._host, name)
        return self.groups[name]

    def commit(
        self, group: str, member_id: str, generation: int, offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> Sequence[TopicPartition]:
        """Store offsets; those of partitions that do not exist are left out and given back.

        Whose partitions they are is not asked: a member of the current generation may commit any. Raises GroupRefusal.
        """
        self.group(group).check_commit(member_id, generation)
        missing = []
        for partition, (offset, metadata) in offsets.items():
            if len(metadata.encode()) > _LONGEST_METADATA:
                raise BrokerError(f"the metadata of {partition} is longer than {_LONGEST_METADATA} bytes")
            if partition not in self._host.partitions_of(partition.topic):
                missing.append(partition)
                continue
            self.committed[group, partition] = (offset, metadata)
            self.commits.append((group, partition, offset))
        return missing

    def forget_topic(self, topic: str) -> None:
        """Its committed offsets go with a deleted topic."""
        for key in [key for key in self.committed if key[1].topic == topic]:
            del self.committed[key]

    def renew_all(self) -> None:
        """Every session begins anew."""
        for group in self.groups.values():
            group.renew_all()

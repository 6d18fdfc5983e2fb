"""What plugins get of a Kafka connection: a shared sender and bounded reads, made when first used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from outboxd.errors import OffsetOutOfRange, TopicUnknown
from outboxd.ports import Admin, BrokerFactory, Sender
from outboxd.records import Headers, Position, RawRecord, TopicPartition

__all__ = ["SharedKafkaConnection"]

_SEND_DEADLINE: Final = timedelta(seconds=30)


class SharedKafkaConnection:
    """`outboxd.api.KafkaConnection` over the ports `Sender` and `Admin`."""

    def __init__(self, brokers: BrokerFactory) -> None:
        self._brokers = brokers
        self._sender: Sender | None = None
        self._admin: Admin | None = None

    async def send(
        self, topic: str, *, key: bytes | None, value: bytes | None, headers: Headers, timestamp: int | None = None
    ) -> Position:
        """Publish one record to its key's partition; returns on the acknowledgement. Raises BrokerError."""
        if self._sender is None:
            self._sender = self._brokers.sender(deadline=_SEND_DEADLINE)
        return await self._sender.send(topic, key=key, value=value, headers=headers, timestamp=timestamp)

    async def read(self, topic: str, offsets: Mapping[int, int], limit: int) -> Sequence[RawRecord]:
        """Up to ``limit`` records of the topic, to its end of now; each partition has an equal share of the limit.

        Raises OffsetOutOfRange for an offset beyond the log's end (the topic was made anew), else BrokerError.
        """
        admin = self._asking()
        ends = await admin.end_offsets(topic)
        starts = {partition: offsets.get(partition.partition, 0) for partition in ends}
        beyond = [partition for partition, end in ends.items() if starts[partition] > end]
        if beyond:
            raise OffsetOutOfRange(
                f"{beyond[0]} ends at {ends[beyond[0]]}, before offset {starts[beyond[0]]}",
                suggestion="The topic was made anew: read it from its start.",
            )
        waiting = sorted(partition for partition, end in ends.items() if starts[partition] < end)
        records: list[RawRecord] = []
        for number, partition in enumerate(waiting):
            share = -(-(limit - len(records)) // (len(waiting) - number))
            if share > 0:
                records += await self._read_to(admin, partition, starts[partition], ends[partition], share)
        return records

    async def max_message_bytes(self, topic: str) -> int | None:
        """The topic's largest record batch in bytes, None when unknown. Raises BrokerError."""
        try:
            return (await self._asking().topic(topic)).max_message_bytes
        except TopicUnknown:
            return None  # it may be made by the first record that is sent to it

    async def close(self) -> None:
        """Flush what was sent, leave no task."""
        sender, self._sender = self._sender, None
        admin, self._admin = self._admin, None
        if sender is not None:
            await sender.close()
        if admin is not None:
            await admin.close()

    def _asking(self) -> Admin:
        if self._admin is None:
            self._admin = self._brokers.admin()
        return self._admin

    @staticmethod
    async def _read_to(admin: Admin, partition: TopicPartition, start: int, end: int, limit: int) -> list[RawRecord]:
        """Records of [start, end), at most ``limit``: a read that gives nothing has only control records before it."""
        records: list[RawRecord] = []
        while start < end and len(records) < limit:
            page = [each for each in await admin.read(partition, start, limit - len(records)) if each.offset < end]
            if not page:
                break
            records += page
            start = page[-1].offset + 1
        return records

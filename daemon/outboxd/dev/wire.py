"""The few Kafka requests that a local server needs of its own: does it answer, make a topic, is it there, a group's offsets.

Spoken directly (KIP-896's oldest versions that a 4.x broker takes, all without tagged fields), so that starting a
broker and making a test's topics costs no client. Everything else goes through `outboxd.kafka`.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["KafkaWire", "RequestFailed"]

_API_VERSIONS = (18, 0)
_METADATA = (3, 4)
_OFFSET_FETCH = (9, 2)
_CREATE_TOPICS = (19, 2)
_CORRELATION = 1
_CLIENT = "outboxd"


class RequestFailed(Exception):
    """The broker answered with an error: its code, and its words when it has some."""

    def __init__(self, code: int, words: str | None) -> None:
        super().__init__(words or f"error code {code}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaWire:
    """Requests to one broker, each over a connection of its own, ``deadline`` in seconds.

    Raises OSError, TimeoutError or EOFError when there is no answer.
    """

    port: int
    host: str = "127.0.0.1"
    deadline: float = 5

    async def is_serving(self) -> bool:
        """True when the broker answers; it listens long before that."""
        try:
            answer = await self._ask(_API_VERSIONS, b"")
        except (OSError, TimeoutError, EOFError):
            return False
        return answer.int16() == 0

    async def make_topic(self, name: str, *, partitions: int, settings: Mapping[str, str]) -> None:
        """Make a topic and wait until the broker itself serves it. Raises RequestFailed."""
        await self.create_topic(name, partitions=partitions, settings=settings)
        # The controller answers before the broker has heard of the topic: a client could still be refused.
        while not await self.has_leaders(name):  # noqa: ASYNC110 -- the broker tells nobody
            await asyncio.sleep(0.01)

    async def create_topic(self, name: str, *, partitions: int, settings: Mapping[str, str]) -> None:
        """Make a topic with one replica. Raises RequestFailed."""
        pairs = b"".join(_string(key) + _string(value) for key, value in settings.items())
        topic = _string(name) + struct.pack(">ihi", partitions, 1, 0) + struct.pack(">i", len(settings)) + pairs
        limits = struct.pack(">i?", int(self.deadline * 1000), False)
        answer = await self._ask(_CREATE_TOPICS, struct.pack(">i", 1) + topic + limits)
        answer.int32()  # throttle time
        answer.int32()  # one topic
        answer.string()
        code = answer.int16()
        if code != 0:
            raise RequestFailed(code, answer.string())

    async def has_leaders(self, topic: str) -> bool:
        """True when the broker itself knows the topic and every partition of it has a leader."""
        answer = await self._ask(_METADATA, struct.pack(">i", 1) + _string(topic) + struct.pack(">?", False))
        answer.int32()  # throttle time
        for _ in range(answer.int32()):  # brokers: id, host, port, rack
            answer.int32(), answer.string(), answer.int32(), answer.string()
        answer.string(), answer.int32(), answer.int32()  # cluster, controller, one topic
        if answer.int16() != 0:
            return False
        answer.string(), answer.boolean()  # name, internal
        codes = []
        for _ in range(answer.int32()):
            codes.append(answer.int16())
            answer.int32(), answer.int32(), answer.int32s(), answer.int32s()  # partition, leader, replicas, in sync
        return bool(codes) and not any(codes)

    async def committed_offsets(self, group: str, topic: str, *, partitions: int) -> dict[int, int]:
        """The group's committed offsets as this broker, its coordinator, has them. Raises RequestFailed."""
        wanted = struct.pack(f">i{partitions}i", partitions, *range(partitions))
        answer = await self._ask(_OFFSET_FETCH, _string(group) + struct.pack(">i", 1) + _string(topic) + wanted)
        offsets = {}
        for _ in range(answer.int32()):
            answer.string()
            for _ in range(answer.int32()):
                partition, offset = answer.int32(), answer.int64()
                answer.string()  # metadata
                code = answer.int16()
                if code != 0:
                    raise RequestFailed(code, None)
                if offset >= 0:
                    offsets[partition] = offset
        code = answer.int16()
        if code != 0:
            raise RequestFailed(code, None)
        return offsets

    async def _ask(self, api: tuple[int, int], body: bytes) -> _Answer:
        head = struct.pack(">hhi", *api, _CORRELATION) + _string(_CLIENT)
        async with asyncio.timeout(self.deadline):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                writer.write(struct.pack(">i", len(head) + len(body)) + head + body)
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                answer = _Answer(await reader.readexactly(length))
            finally:
                writer.close()
        if answer.int32() != _CORRELATION:
            raise EOFError("the answer belongs to another request")
        return answer


class _Answer:
    """Reads an answer's fields in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def _take(self, size: int) -> bytes:
        start, self._position = self._position, self._position + size
        return self._data[start : self._position]

    def int16(self) -> int:
        return int.from_bytes(self._take(2), "big", signed=True)

    def int32(self) -> int:
        return int.from_bytes(self._take(4), "big", signed=True)

    def int64(self) -> int:
        return int.from_bytes(self._take(8), "big", signed=True)

    def boolean(self) -> bool:
        return self._take(1) != b"\0"

    def int32s(self) -> list[int]:
        return [self.int32() for _ in range(self.int32())]

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data

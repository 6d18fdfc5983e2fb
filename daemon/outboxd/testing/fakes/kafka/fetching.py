"""One assigned partition on the client's side: its position, its pause, and what was fetched ahead of the polls."""

from __future__ import annotations

import asyncio
from typing import Final

from outboxd.errors import BrokerError, BrokerUnreachable, FetchUndecodable, TopicUnknown
from outboxd.records import RawRecord, TopicPartition
from outboxd.testing.fakes.kafka.bell import Bell
from outboxd.testing.fakes.kafka.connection import REQUEST_TIMEOUT, Connection
from outboxd.testing.fakes.kafka.log import Fetched
from outboxd.testing.fakes.kafka.requests import NoBroker

__all__ = ["AssignedLog"]

_BACKOFF: Final = 0.1
_REFRESH: Final = 0.5


class AssignedLog:
    """Reads ahead of the polls by one fetch. Nothing raises while no broker answers: there are no records then."""

    def __init__(self, connection: Connection, partition: TopicPartition) -> None:
        self._connection = connection
        self.partition = partition
        self.position: int | None = None
        self.is_paused = False
        self.ready = Bell()
        """Rings when there is something for a poll."""
        self._fetched: Fetched | None = None
        self._next = 0
        """The index of the next fetched record."""
        self._error: BrokerError | None = None
        self._fetching: asyncio.Task[None] | None = None

    def seek(self, offset: int) -> None:
        """Read from this offset next."""
        self.forget()
        self.position = offset
        self.ready.ring()

    def take(self, most: int) -> list[RawRecord]:
        """Records that are here already, and the position moves past them; markers are passed over.

        Raises OffsetOutOfRange and TopicDenied, and FetchUndecodable without a move, however many good records stand
        before the bad one.
        """
        if self.is_paused:
            self.forget()
            return []
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        fetched = self._fetched
        if fetched is None:
            return []
        records = list(fetched.records[self._next : self._next + most])
        for record in records:
            if record.offset in fetched.spoiled:
                self.forget()
                raise FetchUndecodable(f"{self.partition}@{record.offset}: {fetched.spoiled[record.offset]}")
        self._next += len(records)
        if self._next < len(fetched.records):
            self.position = records[-1].offset + 1
        else:
            self.position = fetched.next_offset
            self._fetched = None
        return records

    def fetch_ahead(self) -> None:
        """See to it that something is here or on its way."""
        is_wanted = self._fetched is None and self._error is None and not self.is_paused
        if is_wanted and self.position is not None and (self._fetching is None or self._fetching.done()):
            self._fetching = asyncio.create_task(self._fetch(self.position), name=f"kafka: fetch {self.partition}")

    async def end(self) -> None:
        """Leave no task behind."""
        task = self._fetching
        self.forget()
        if task is not None:
            await asyncio.wait((task,))

    def forget(self) -> None:
        """Throw away what was fetched; the position stays."""
        self._fetched, self._next, self._error = None, 0, None
        if self._fetching is not None:
            self._fetching.cancel()
            self._fetching = None

    async def _fetch(self, position: int) -> None:
        brokers = self._connection.brokers
        while self._fetched is None and self._error is None:
            count = brokers.arrivals.count
            try:
                async with asyncio.timeout(REQUEST_TIMEOUT):
                    fetched = await self._connection.once("fetch", lambda: brokers.fetch(self.partition, position))
            except NoBroker:
                await brokers.arrivals.wait(count)
            except (BrokerUnreachable, TimeoutError):
                await asyncio.sleep(_BACKOFF)
            except TopicUnknown:
                await asyncio.sleep(_REFRESH)
            except BrokerError as error:
                self._error = error
            else:
                if fetched.next_offset == position:
                    await fetched.bell.wait(fetched.count)
                else:
                    self._fetched, self._next = fetched, 0
        self.ready.ring()

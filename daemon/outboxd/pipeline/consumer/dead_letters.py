"""Brings dead letters to the chain, away from the workers, so that a sink that hangs costs healthy records nothing.

While no sink takes a letter its record waits, and its offset with it; only the chain is tried again, never the handler
(invariants 4 and 8, B048). A letter is made once, so every try carries the same one (invariant 6).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol
from uuid import UUID

from outboxd.errors import ChainExhausted, OutboxdError, PipelineStopped
from outboxd.pipeline.consumer.backoff import CHAIN_BACKOFF
from outboxd.pipeline.consumer.partition import Feeding, InHand
from outboxd.pipeline.consumer.timers import Timers
from outboxd.pipeline.letters.making import FailureFacts
from outboxd.pipeline.run import Stall
from outboxd.ports import Clock, Random
from outboxd.records import Letter, RawRecord

__all__ = ["DeadLetterQueue", "LetterChain"]

_BATCH: Final = 64


class LetterChain(Protocol):
    """`outboxd.pipeline.letters.chain.Chain`."""

    async def open(self) -> None:
        """Open every sink; one that is down does not make it raise."""
        ...

    async def write(self, letters: Sequence[Letter]) -> Sequence[str]:
        """Durable in one of the sinks when it returns. Raises ChainExhausted."""
        ...

    async def close(self) -> None:
        """Close every sink."""
        ...

    def status(self) -> Mapping[str, object]:
        """How the sinks are."""
        ...


class DeadLetterQueue:
    """Records whose letter is not durable yet. ``finish`` is called for each once it is; ``fail`` ends the pipeline."""

    def __init__(
        self,
        *,
        chain: LetterChain,
        make: Callable[[RawRecord, FailureFacts], Letter],
        exhausted: Literal["wait", "stop"],
        clock: Clock,
        random: Random,
        finish: Callable[[InHand], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._chain = chain
        self._make = make
        self._exhausted = exhausted
        self._clock = clock
        self._random = random
        self._finish = finish
        self._fail = fail
        self._queue: deque[InHand] = deque()
        self._arrived = asyncio.Event()
        self._waiting: Timers[InHand] = Timers(clock, self._again)
        self._stalls: dict[InHand, Stall] = {}
        self.written = 0

    def __len__(self) -> int:
        return len(self._queue) + len(self._waiting)

    @property
    def stall(self) -> Stall | None:
        """Why letters wait; None when none does."""
        self._stalls = {record: stall for record, stall in self._stalls.items() if not record.partition.is_closed}
        return next(iter(self._stalls.values()), None)

    def add(self, record: InHand, facts: FailureFacts) -> None:
        """Make the record's letter and queue it."""
        failing = record.failing
        assert failing is not None, "only a record that failed becomes a letter"
        try:
            failing.letter = self._make(record.raw, facts)
        except OutboxdError as error:
            self._fail(error)  # a redact hook that raises: neither lost nor written with what was to be taken out
            return
        self._queue_up(record)

    def keep(self, is_wanted: Callable[[InHand], bool]) -> None:
        """Forget the letters of partitions that are gone: whoever has them now comes to the same letter."""
        self._waiting.keep(is_wanted)
        for record in [record for record in self._queue if not is_wanted(record)]:
            self._queue.remove(record)
            record.partition.ended()

    async def run(self) -> None:
        """Write letters until cancelled."""
        while True:
            while not self._queue:
                self._arrived.clear()
                await self._arrived.wait()
            batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
            await self._write(batch)

    def close(self) -> None:
        """Forget everything; the offsets of these records were not committed."""
        self._waiting.close()
        self._queue.clear()

    def _queue_up(self, record: InHand) -> None:
        record.partition.began()
        self._queue.append(record)
        self._arrived.set()

    def _again(self, record: InHand) -> None:
        if record.partition.feeding is not Feeding.NONE:
            self._queue_up(record)

    async def _write(self, batch: Sequence[InHand]) -> None:
        letters = [record.failing.letter for record in batch if record.failing is not None]
        stored: frozenset[UUID] | None = None
        exhausted: ChainExhausted | None = None
        try:
            await self._chain.write([letter for letter in letters if letter is not None])
        except ChainExhausted as error:
            exhausted = error
            stored = frozenset(error.stored)
        finally:
            for record in batch:
                record.partition.ended()
        waiting = []
        for record, letter in zip(batch, letters, strict=True):
            if stored is None or (letter is not None and letter.id in stored):
                self.written += 1
                self._stalls.pop(record, None)
                self._finish(record)
            elif not record.partition.is_closed:
                waiting.append(record)
        if exhausted is not None and waiting:
            self._wait(waiting, exhausted)

    def _wait(self, batch: Sequence[InHand], error: ChainExhausted) -> None:
        reason = error.reason
        if self._exhausted == "stop":
            stopped = PipelineStopped(
                f"no dead-letter sink took the letter ({reason}): {error}",
                suggestion="mend a sink, then `outboxd resume` the pipeline, or set dead_letters.exhausted: wait",
            )
            stopped.__cause__ = error
            self._fail(stopped)
            return
        failures = max(r.failing.chain_failures for r in batch if r.failing is not None) + 1
        # One delay for all of them, so that they come back as one batch.
        delay = CHAIN_BACKOFF.delay(failures, self._random)
        for record in batch:
            assert record.failing is not None
            record.failing.chain_failures = failures
            self._stalls[record] = Stall(reason=reason, message=str(error))
            self._waiting.schedule(record, delay)

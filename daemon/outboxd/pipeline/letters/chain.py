"""The chain of dead-letter sinks: each letter goes down it until one sink has it durably."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from outboxd.errors import ChainExhausted, SinkUnavailable
from outboxd.pipeline.letters.delivery import Delivery
from outboxd.pipeline.letters.guarded_sink import ChainLink, GuardedSink
from outboxd.pipeline.letters.text import describe
from outboxd.ports import Clock
from outboxd.records import Letter
from outboxd.telemetry import letters as events
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Chain", "ChainLink"]

_HOME_TYPE: Final = "postgres"


class Chain:
    """The sinks of one pipeline, in order.

    Sinks that failed lately are passed over while another works, and always tried when no other is left. ``on_written``
    is the observer hook `outboxd_letter_written`; what it raises is logged and otherwise ignored.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        links: Sequence[ChainLink],
        clock: Clock,
        telemetry: Telemetry,
        on_written: Callable[[Letter, str], None] = lambda *_: None,
    ) -> None:
        self._pipeline = pipeline
        self._telemetry = telemetry
        self._on_written = on_written
        self._in_use: str | None = None
        self._sinks: Final = tuple(GuardedSink(link, clock, self._late(link.name)) for link in links)
        telemetry.instruments.letters.declare(pipeline, [link.name for link in links])

    @property
    def sinks(self) -> Sequence[GuardedSink]:
        """The sinks, in order."""
        return self._sinks

    @property
    def home(self) -> GuardedSink | None:
        """The sink whose letters have status and replay: the first of type `postgres`; None without one."""
        return next((sink for sink in self._sinks if sink.link.type == _HOME_TYPE), None)

    async def open(self) -> None:
        """Open every sink within its deadline. One that cannot be opened is degraded, not fatal: never raises."""
        async with asyncio.TaskGroup() as group:
            for sink in self._sinks:
                group.create_task(self._open(sink), name=f"open sink {sink.name}")

    async def close(self) -> None:
        """Close every sink within seconds; never raises. No write may be under way."""
        async with asyncio.TaskGroup() as group:
            for sink in self._sinks:
                group.create_task(self._close(sink), name=f"close sink {sink.name}")

    async def write(self, letters: Sequence[Letter]) -> Sequence[str]:
        """Write letters durably; the name of the sink that took each, in order (invariant 8).

        Raises ChainExhausted when a letter was taken by none; its ``stored`` says which of the others were.
        """
        delivery = Delivery(letters, sinks=len(self._sinks))
        passed_over: list[GuardedSink] = []
        for sink in self._sinks:
            if delivery.is_done:
                break
            if sink.breaker.may_try():
                await self._offer(sink, delivery)
            else:
                passed_over.append(sink)
        for sink in passed_over:  # no other is left
            if delivery.is_done:
                break
            await self._offer(sink, delivery)
        if not delivery.is_done:
            raise self._exhausted(delivery)
        return delivery.takers()

    def status(self) -> Mapping[str, object]:
        """How the chain is: the sink that took the latest letters, and each sink's state and reason."""
        return {"in_use": self._in_use, "sinks": [sink.status() for sink in self._sinks]}

    async def _offer(self, sink: GuardedSink, delivery: Delivery) -> None:
        waiting = delivery.waiting
        try:
            answers = await sink.write(waiting)
        except SinkUnavailable as error:
            delivery.unavailable(sink.name, describe(error))
            self._failed(sink)
            return
        self._works(sink)
        stored, refused = delivery.answered(sink.name, answers)
        if refused:
            self._telemetry.emit(
                events.LettersRefused(
                    pipeline=self._pipeline,
                    sink=sink.name,
                    letter_ids=[letter.id for letter, _ in refused],
                    reason=refused[0][1],
                    next_sink=self._after(sink),
                )
            )
        if stored:
            self._written(sink, stored)

    def _written(self, sink: GuardedSink, letters: Sequence[Letter]) -> None:
        self._in_use = sink.name
        self._telemetry.emit(
            events.LettersWritten(
                pipeline=self._pipeline,
                sink=sink.name,
                rules=[letter.rule.partition(":")[0] for letter in letters],
                letter_ids=[letter.id for letter in letters],
                others=[other.name for other in self._sinks if other is not sink],
            )
        )
        for letter in letters:
            try:
                self._on_written(letter, sink.name)
            except Exception as error:  # noqa: BLE001 - an observer is never felt by the data path
                self._telemetry.emit(events.ObserverFailed(pipeline=self._pipeline, error=describe(error)))

    def _exhausted(self, delivery: Delivery) -> ChainExhausted:
        error = delivery.exhausted()
        self._telemetry.emit(
            events.ChainExhausted(
                pipeline=self._pipeline,
                reason=error.reason,
                letter_ids=[letter.id for letter in delivery.waiting],
                message=error.message,
            )
        )
        return error

    async def _open(self, sink: GuardedSink) -> None:
        try:
            await sink.open()
        except SinkUnavailable:
            self._failed(sink)

    async def _close(self, sink: GuardedSink) -> None:
        try:
            await sink.close()
        except Exception as error:  # noqa: BLE001 - closing goes on with the others
            self._telemetry.emit(
                events.SinkCloseFailed(pipeline=self._pipeline, sink=sink.name, reason=describe(error))
            )

    def _failed(self, sink: GuardedSink) -> None:
        self._telemetry.emit(
            events.SinkFailed(
                pipeline=self._pipeline,
                sink=sink.name,
                reason=sink.reason or "",
                skipped_for=sink.breaker.retry_in,
                next_sink=self._after(sink),
            )
        )

    def _works(self, sink: GuardedSink) -> None:
        if sink.breaker.succeeded():
            self._telemetry.emit(events.SinkRecovered(pipeline=self._pipeline, sink=sink.name))

    def _after(self, sink: GuardedSink) -> str | None:
        following = self._sinks[self._sinks.index(sink) + 1 :]
        return following[0].name if following else None

    def _late(self, name: str) -> Callable[[], None]:
        return lambda: self._telemetry.emit(events.SinkAnsweredLate(pipeline=self._pipeline, sink=name))

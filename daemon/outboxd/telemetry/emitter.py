"""How code says that something happened: one small class per happening writes its log line and its metrics together."""

from __future__ import annotations

from typing import Protocol

from outboxd.api.context import Logger
from outboxd.telemetry.metrics import Instruments

__all__ = ["Event", "Telemetry"]


class Event(Protocol):
    """Something that happened, noun + past participle; a frozen dataclass in `outboxd.telemetry.events`."""

    def record(self, logger: Logger, instruments: Instruments) -> None:
        """Write the log line (for action) and the metrics (for normal work). Never raises, never blocks."""
        ...


class Telemetry:
    """Hands events to the logger and the instruments of this process."""

    __slots__ = ("_instruments", "_logger")

    def __init__(self, logger: Logger, instruments: Instruments) -> None:
        self._logger = logger
        self._instruments = instruments

    @property
    def instruments(self) -> Instruments:
        """The metric instruments, for gauges that are set where their value lives."""
        return self._instruments

    def emit(self, event: Event) -> None:
        """Write down that this happened."""
        event.record(self._logger, self._instruments)

"""What happens to dead letters: the instruments, and one event class per happening."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["LetterInstruments"]


class LetterInstruments:
    """The metric instruments of dead letters."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

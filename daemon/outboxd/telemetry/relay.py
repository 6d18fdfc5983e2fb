"""What happens to relays: the instruments, and one event class per happening."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["RelayInstruments"]


class RelayInstruments:
    """The metric instruments of relays."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

"""What happens to pipelines as wholes: the instruments, and one event class per happening."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

__all__ = ["PipelineInstruments"]


class PipelineInstruments:
    """The metric instruments of pipelines as wholes."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

"""Spans: a tracer provider that samples, exports only where an endpoint is configured, and ends within its deadline."""

from __future__ import annotations

from typing import Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Tracer

from outboxd.telemetry.exporters import SHUTDOWN_DEADLINE, bounded

__all__ = ["Traces"]

_QUEUE: Final = 8192
_EXPORT_DEADLINE: Final = 3.0


class Traces:
    """The tracer provider of the process.

    Without an endpoint no spans are made: a record's own trace still reaches its handler and the log lines.
    """

    def __init__(self, about: Resource, *, otlp_endpoint: str | None = None, sample_ratio: float = 1.0) -> None:
        self._provider = TracerProvider(
            resource=about, sampler=ParentBased(TraceIdRatioBased(sample_ratio)), shutdown_on_exit=False
        )
        self._is_exporting = otlp_endpoint is not None
        if otlp_endpoint is not None:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

            exporter = OTLPSpanExporter(endpoint=f"{otlp_endpoint.rstrip('/')}/v1/traces", timeout=_EXPORT_DEADLINE)
            # Full means dropped: a collector that is away costs memory for so many spans and nothing else.
            self._provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUE))

    @property
    def tracer(self) -> Tracer | None:
        """The tracer of outboxd's own spans; None when nobody takes them."""
        return self._provider.get_tracer("outboxd") if self._is_exporting else None

    def close(self) -> bool:
        """Send what is left; False when the collector did not take it in time."""
        return bounded(self._provider.shutdown, SHUTDOWN_DEADLINE)

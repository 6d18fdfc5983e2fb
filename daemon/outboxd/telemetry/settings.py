"""Settings of logs, metrics and traces: the YAML's `telemetry` section."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from outboxd.api.settings import PluginSettings

__all__ = ["LogSettings", "MetricSettings", "TelemetrySettings", "TraceSettings"]

Endpoint = Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+")]
"""An OTLP endpoint over HTTP."""


class LogSettings(PluginSettings):
    """How the daemon logs, to standard output."""

    format: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines: one object per line, with `trace_id` and `span_id`."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written."""


class MetricSettings(PluginSettings):
    """Where metrics go."""

    prometheus: bool = True
    """Whether `GET /metrics` answers in the Prometheus format."""
    otlp_endpoint: Endpoint | None = None
    """An OTLP/HTTP endpoint that metrics are pushed to, such as `http://collector:4318`."""


class TraceSettings(PluginSettings):
    """Where traces go."""

    otlp_endpoint: Endpoint | None = None
    """An OTLP/HTTP endpoint that spans are pushed to, such as `http://collector:4318`; without one none are made."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of traces without a sampled parent that are recorded, from 0 to 1."""


class TelemetrySettings(PluginSettings):
    """Logs, metrics and traces of the process."""

    logs: LogSettings = LogSettings()
    """How the daemon logs."""
    metrics: MetricSettings = MetricSettings()
    """Where metrics go."""
    traces: TraceSettings = TraceSettings()
    """Where traces go."""

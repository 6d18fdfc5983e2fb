"""Takes the series of pipelines that are gone out of what is exported: an instrument of the SDK keeps every series for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from opentelemetry.sdk.metrics.export import (
    ExponentialHistogram,
    Gauge,
    Histogram,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    Sum,
)

__all__ = ["Departed", "WithoutDeparted"]

_LABEL: Final = "pipeline"


class Departed:
    """The pipelines that are gone; one that comes back has its series back, its counters where they were."""

    def __init__(self) -> None:
        # Read in the threads that export: replaced as a whole, never changed.
        self._names: frozenset[str] = frozenset()

    def add(self, pipeline: str) -> None:
        """It is gone."""
        self._names |= {pipeline}

    def discard(self, pipeline: str) -> None:
        """It is there again."""
        self._names -= {pipeline}

    def without(self, data: MetricsData) -> MetricsData:
        """The same metrics without the series of those that are gone."""
        gone = self._names
        if not gone:
            return data
        return replace(
            data,
            resource_metrics=[
                replace(
                    resource,
                    scope_metrics=[
                        replace(scope, metrics=_metrics(scope.metrics, gone)) for scope in resource.scope_metrics
                    ],
                )
                for resource in data.resource_metrics
            ],
        )


class WithoutDeparted(MetricExporter):
    """An exporter that is not told of pipelines that are gone."""

    def __init__(self, exporter: MetricExporter, departed: Departed) -> None:
        super().__init__(
            preferred_temporality=exporter._preferred_temporality,  # noqa: SLF001  # what a reader asks an exporter for
            preferred_aggregation=exporter._preferred_aggregation,  # noqa: SLF001
        )
        self._exporter = exporter
        self._departed = departed

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> MetricExportResult:
        """As the exporter's own."""
        return self._exporter.export(self._departed.without(metrics_data), timeout_millis=timeout_millis, **kwargs)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """As the exporter's own."""
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """As the exporter's own."""
        self._exporter.shutdown(timeout_millis=timeout_millis, **kwargs)


def _metrics(metrics: Sequence[Metric], gone: frozenset[str]) -> list[Metric]:
    """A metric that has no series left is left out."""
    kept = []
    for metric in metrics:
        data = metric.data
        match data:
            case Sum() | Gauge() | Histogram() | ExponentialHistogram():
                points = [point for point in data.data_points if (point.attributes or {}).get(_LABEL) not in gone]
                if points:
                    kept.append(replace(metric, data=replace(data, data_points=points)))  # type: ignore[arg-type]  # each with points of its own kind
    return kept

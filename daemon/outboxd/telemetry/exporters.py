"""Where metrics and spans go: the Prometheus page, OTLP when it is configured, and a bounded way out.

A collector that is down or silent is never felt by the data path (spans and metrics are queued and then dropped) and
holds the exit up for five seconds at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, MetricsData, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from outboxd.telemetry.departed import Departed, WithoutDeparted

__all__ = ["SHUTDOWN_DEADLINE", "Metrics", "bounded", "resource"]

SHUTDOWN_DEADLINE: Final = 5.0
_EXPORT_EVERY: Final = 30_000
_EXPORT_DEADLINE: Final = 3.0


def resource(service: str, instance: str) -> Resource:
    """Who we are, for every signal."""
    return Resource.create(
        {"service.name": service, "service.instance.id": instance, "service.version": version("outboxd")}
    )


class _PageReader(PrometheusMetricReader):
    """The page without pipelines that are gone."""

    def __init__(self, registry: CollectorRegistry, departed: Departed) -> None:
        self._departed = departed
        super().__init__(disable_target_info=False, scope_info_enabled=False, registry=registry)

    def _receive_metrics(self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any) -> None:
        # What the SDK asks every reader to implement.
        told = None if metrics_data is None else self._departed.without(metrics_data)
        super()._receive_metrics(told, timeout_millis, **kwargs)


class Metrics:
    """The meter provider of the process with a registry of its own: several can stand side by side in one process."""

    content_type: Final = CONTENT_TYPE_LATEST

    def __init__(self, about: Resource, *, otlp_endpoint: str | None = None) -> None:
        self._registry = CollectorRegistry()
        self._departed = Departed()
        readers: list[MetricReader] = [_PageReader(self._registry, self._departed)]
        if otlp_endpoint is not None:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

            exporter = OTLPMetricExporter(endpoint=f"{otlp_endpoint.rstrip('/')}/v1/metrics", timeout=_EXPORT_DEADLINE)
            readers.append(
                PeriodicExportingMetricReader(
                    WithoutDeparted(exporter, self._departed),
                    export_interval_millis=_EXPORT_EVERY,
                    export_timeout_millis=_EXPORT_DEADLINE * 1000,
                )
            )
        self._provider = MeterProvider(metric_readers=readers, resource=about, shutdown_on_exit=False)

    @property
    def meter(self) -> Meter:
        """The meter of outboxd's own instruments."""
        return self._provider.get_meter("outboxd")

    def plugin_meter(self, name: str) -> Meter:
        """The meter of a plugin."""
        return self._provider.get_meter(f"outboxd.plugin.{name}")

    def forget(self, pipeline: str) -> None:
        """Show the series of this pipeline no more: it is gone."""
        self._departed.add(pipeline)

    def remember(self, pipeline: str) -> None:
        """Show them again: it is there."""
        self._departed.discard(pipeline)

    def page(self) -> bytes:
        """The metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def close(self) -> bool:
        """Send what is left; False when the collector did not take it in time."""
        return bounded(lambda: self._provider.shutdown(timeout_millis=SHUTDOWN_DEADLINE * 1000), SHUTDOWN_DEADLINE)


def bounded(work: Callable[[], object], seconds: float) -> bool:
    """Run blocking ``work`` in a thread for so long; whether it ended in time. It is left alone when it did not.

    The thread is a daemon: an exporter that retries against a silent collector cannot hold the exit up.
    """
    thread = threading.Thread(target=work, name="telemetry shutdown", daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()

"""Registers the first-party sinks."""

from __future__ import annotations

from collections.abc import Mapping

from outboxd.api import hookimpl
from outboxd_plugins.sinks.kafka import KafkaSink
from outboxd_plugins.sinks.postgres import PostgresSink
from outboxd_plugins.sinks.spool import SpoolSink

__all__ = ["outboxd_register_sinks"]


@hookimpl
def outboxd_register_sinks() -> Mapping[str, type]:
    """Sinks `postgres`, `kafka`, `spool`."""
    return {"postgres": PostgresSink, "kafka": KafkaSink, "spool": SpoolSink}

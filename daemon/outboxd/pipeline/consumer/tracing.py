"""The span `process {topic}` around a handler's call, in the trace that the record's `traceparent` names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from outboxd.records import Headers, Record

__all__ = ["Tracing"]

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_TRACEPARENT: Final = "traceparent"
_TRACESTATE: Final = "tracestate"


class Tracing:
    """Runs calls inside the record's trace. Without a tracer no span is made, but the trace still goes on to the handler."""

    __slots__ = ("_group", "_tracer")

    def __init__(self, *, tracer: Tracer | None, group: str) -> None:
        self._tracer = tracer
        self._group = group

    def is_wanted(self, record: Record) -> bool:
        """False when there is neither a tracer nor a trace: then the call needs nothing around it."""
        return self._tracer is not None or (bool(record.headers) and record.headers.get(_TRACEPARENT) is not None)

    @contextmanager
    def processing(self, record: Record) -> Iterator[None]:
        """The call of the handler."""
        parent = _parent(record.headers)
        if self._tracer is None:
            token = otel_context.attach(parent)
            try:
                yield
            finally:
                otel_context.detach(token)
            return
        with self._tracer.start_as_current_span(
            f"process {record.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes={
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.destination.name": record.topic,
                "messaging.destination.partition.id": str(record.partition),
                "messaging.kafka.offset": record.offset,
                "messaging.consumer.group.name": self._group,
                "outboxd.attempt": record.attempt,
            },
        ):
            yield


def _parent(headers: Headers) -> Context:
    """The record's context; an empty one for no header and for garbage, so that no other record's trace is continued."""
    carrier = {
        name: value.decode("ascii", "replace")
        for name in (_TRACEPARENT, _TRACESTATE)
        if (value := headers.get(name)) is not None
    }
    return _PROPAGATOR.extract(carrier, Context())

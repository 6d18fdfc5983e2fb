"""The handler runs inside the record's trace."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outboxd.records import Headers, Record, TopicPartition
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually

TP = TopicPartition("orders", 0)
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = Headers([("traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode())])


class Seeing(ScriptedHandler):
    def __init__(self) -> None:
        self.seen: list[tuple[int, str]] = []
        super().__init__(self._look)

    async def _look(self, record: Record) -> None:
        context = trace.get_current_span().get_span_context()
        self.seen.append((record.offset, f"{context.trace_id:032x}"))


@virtual_time
async def test_a_span_continues_the_records_trace_and_garbage_is_ignored() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=Seeing(), tracer=provider.get_tracer("outboxd"))
    cluster.produce("orders", b"k", b"v", headers=TRACEPARENT)
    cluster.produce("orders", b"k", b"v", headers=Headers([("traceparent", b"\xff garbage")]))
    cluster.produce("orders", b"k", b"v", headers=Headers([("traceparent", None)]))
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 3)
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == ["process orders"] * 3
    traces = [f"{span.context.trace_id:032x}" for span in spans if span.context is not None]
    assert traces[0] == TRACE
    assert TRACE not in traces[1:]
    assert traces[1] != traces[2]
    assert rig.handler.seen == list(enumerate(traces))
    await rig.stop()


@virtual_time
async def test_without_a_tracer_the_records_trace_still_reaches_the_handler_and_no_other() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=Seeing())
    cluster.produce("orders", b"k", b"v", headers=TRACEPARENT)
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 2)
    assert rig.handler.seen == [(0, TRACE), (1, "0" * 32)]
    await rig.stop()

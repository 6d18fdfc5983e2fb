"""A collector that takes nothing: neither the data path nor the exit may feel it."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outboxd.telemetry.exporters import Metrics, bounded, resource
from outboxd.telemetry.traces import Traces

SCRIPT = """
import sys
from outboxd.telemetry.exporters import Metrics, resource
from outboxd.telemetry.traces import Traces
about, endpoint = resource("shop", "shop-1"), sys.argv[1]
metrics, traces = Metrics(about, otlp_endpoint=endpoint), Traces(about, otlp_endpoint=endpoint)
metrics.meter.create_counter("outboxd_test").add(1)
tracer = traces.tracer
for _ in range(20_000):  # more than any queue holds
    tracer.start_span("send orders").end()
print("worked", flush=True)
print(traces.close(), metrics.close(), flush=True)
"""


@pytest.fixture
def blackhole() -> Iterator[str]:
    """An endpoint that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.fixes("B060")
def test_a_silent_collector_holds_up_neither_the_work_nor_the_exit(blackhole: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, blackhole], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "worked"


def test_work_that_never_ends_is_left_alone() -> None:
    forever = socket.socketpair()
    assert not bounded(lambda: forever[0].recv(1), 0.05)
    forever[1].close()
    forever[0].close()
    assert bounded(lambda: None, 10)


def test_without_an_endpoint_there_are_no_spans_and_each_registry_stands_alone() -> None:
    about = resource("shop", "shop-1")
    traces = Traces(about)
    assert traces.tracer is None
    first, second = Metrics(about), Metrics(about)
    first.meter.create_counter("outboxd_only_here").add(1)
    assert b"outboxd_only_here_total 1.0" in first.page()
    assert b"outboxd_only_here" not in second.page()
    assert traces.close()
    assert first.close()
    assert second.close()

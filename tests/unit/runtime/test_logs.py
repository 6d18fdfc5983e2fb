"""Log lines: trace ids, no secrets, and libraries that do not flood."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider

from outboxd.telemetry.logs import LibraryRateLimit, configure_logs, get_logger, set_redactor
from outboxd.telemetry.redaction import Redactor


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))
    stream = io.StringIO()
    configure_logs(format="json", level="info", stream=stream)
    yield stream
    set_redactor(Redactor())
    root.setLevel(before[0])
    root.handlers[:] = before[1]
    logging.captureWarnings(capture=False)


def test_a_line_is_json_with_a_stable_event_and_the_ids_of_its_trace(lines: io.StringIO) -> None:
    with TracerProvider().get_tracer("t").start_as_current_span("work") as span:
        get_logger(pipeline="orders").info("batch_published", count=3)
    line = json.loads(lines.getvalue())
    assert (line["event"], line["pipeline"], line["count"], line["level"]) == ("batch_published", "orders", 3, "info")
    assert int(line["trace_id"], 16) == span.get_span_context().trace_id
    assert int(line["span_id"], 16) == span.get_span_context().span_id


def test_no_secret_is_in_a_line_however_it_got_there(lines: io.StringIO) -> None:
    set_redactor(Redactor(["s3cr3t/with@signs", "tok"]))
    logger = get_logger()
    logger.error("failed", exc_info=ValueError("postgresql://shop:hunter2@db/x with s3cr3t/with@signs"))
    logger.info(
        "connected",
        dsn="postgresql://shop:hunter2@db/x",
        password="hunter2",
        nested={"sasl_password": "hunter2", "items": ["password=hunter2", b"hunter-bytes"]},
        message="options: password='hunter2' user=shop",
    )
    logging.getLogger("asyncpg").error("no pg_hba entry, password=%s", "hunter2")
    written = lines.getvalue()
    assert "hunter2" not in written
    assert "s3cr3t" not in written
    assert "user=shop" in written
    assert "postgresql://shop:***@db/x" in written


def test_a_library_says_the_same_five_times_a_minute_and_then_how_often_it_was_held_back() -> None:
    now = 0.0
    limit = LibraryRateLimit(clock=lambda: now)

    def say(name: str = "aiokafka") -> logging.LogRecord | None:
        record = logging.LogRecord(name, logging.ERROR, "client.py", 7, "cannot connect to %s", ("kafka:9092",), None)
        return record if limit.filter(record) else None

    assert [say() is not None for _ in range(8)] == [True] * 5 + [False] * 3
    assert say("outboxd.kafka") is not None
    now = 61.0
    record = say()
    assert record is not None
    assert record.getMessage() == "cannot connect to kafka:9092 [3 more in the last 60 s]"


def test_a_stream_that_is_gone_is_not_felt_by_who_logs(lines: io.StringIO) -> None:
    lines.close()
    get_logger().error("still_here")

"""What the client library repeats is limited, and what it says while connecting is kept."""

from __future__ import annotations

import logging

from outboxd.kafka.library_logs import LibraryLogFilter, captured_errors


def record(message: str = "no leader for %s", *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("aiokafka.test", logging.ERROR, "here.py", 1, message, arguments or ("t-0",), None)


def test_a_repeated_message_passes_a_few_times_and_is_then_counted() -> None:
    now = 0.0
    limited = LibraryLogFilter(burst=2, window=10, clock=lambda: now)
    assert [limited.filter(record()) for _ in range(5)] == [True, True, False, False, False]
    assert limited.filter(record("another message %s"))
    now = 11.0
    told = record()
    assert limited.filter(told)
    assert told.getMessage() == "no leader for t-0 (and 3 more like it in the last 11 s)"


def test_exceptions_that_are_logged_while_connecting_are_kept_for_the_diagnosis() -> None:
    limited = LibraryLogFilter()
    cause = OSError("refused")
    limited.filter(record("%s: %s", "host", cause))
    with captured_errors() as causes:
        limited.filter(record("%s: %s", "host", cause))
    limited.filter(record("%s: %s", "host", OSError("later")))
    assert causes == [cause]

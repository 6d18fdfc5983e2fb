"""What the tests of dead letters share: letters to write, and a telemetry that remembers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid5

from opentelemetry.metrics import NoOpMeter

from outboxd.pipeline.letters.chain import Chain, ChainLink
from outboxd.records import Headers, Letter, RawRecord, Stage, TimestampType
from outboxd.telemetry.emitter import Event, Telemetry
from outboxd.telemetry.metrics import Instruments
from outboxd.testing.fakes.clock import FakeClock
from outboxd.testing.fakes.sinks import FakeSink

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
_NAMESPACE = UUID("00000000-0000-0000-0000-000000000001")


class ListLogger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def _log(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.lines.append((level, event, fields))

    def debug(self, event: str, **fields: object) -> None:
        self._log("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log("error", event, fields)


class Recorder(Telemetry):
    def __init__(self) -> None:
        self.log = ListLogger()
        super().__init__(self.log, Instruments(NoOpMeter("test")))
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)
        super().emit(event)

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def a_record(offset: int = 0, **changes: object) -> RawRecord:
    fields: dict[str, object] = {
        "topic": "orders.new",
        "partition": 0,
        "offset": offset,
        "timestamp": 1_772_366_400_000 + offset,
        "timestamp_type": TimestampType.CREATE_TIME,
        "key": b"key-%d" % (offset % 3),
        "value": b"value-%d" % offset,
        "headers": Headers((("app", b"1"), ("app", b"2"), ("nul", None))),
    }
    return RawRecord(**(fields | changes))  # type: ignore[arg-type]


def a_letter(offset: int = 0, **changes: object) -> Letter:
    record = a_record(offset)
    fields: dict[str, object] = {
        "id": uuid5(_NAMESPACE, f"{changes.get('pipeline', 'orders')}/{offset}"),
        "pipeline": "orders",
        "group": "orders",
        "handler": "shop.orders:handle",
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": record.timestamp_type,
        "key": record.key,
        "value": record.value,
        "headers": record.headers,
        "stage": Stage.HANDLE,
        "error_class": "shop.domain.InvalidTransition",
        "error_root_class": "ValueError",
        "error_message": "no way from done to new",
        "error_traceback": "Traceback (most recent call last):\n  ...\nshop.domain.InvalidTransition: no way\n",
        "attempts": 1,
        "first_failed_at": START + timedelta(seconds=offset),
        "last_failed_at": START + timedelta(seconds=offset),
        "rule": "rules[0]: exception shop.domain.InvalidTransition",
        "fingerprint": "f" * 32,
    }
    return Letter(**(fields | changes))  # type: ignore[arg-type]


def a_chain(**sinks: FakeSink) -> tuple[Chain, Recorder]:
    """A chain of these sinks in their order, each with a deadline of five seconds; `postgres` is the home."""
    telemetry = Recorder()
    links = [ChainLink(name=name, type=name, sink=sink, deadline=timedelta(seconds=5)) for name, sink in sinks.items()]
    return Chain(pipeline="orders", links=links, clock=FakeClock(), telemetry=telemetry), telemetry

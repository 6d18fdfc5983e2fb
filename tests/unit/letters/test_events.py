from __future__ import annotations

from uuid import UUID

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from outboxd.telemetry import letters as events
from outboxd.telemetry.emitter import Event, Telemetry
from outboxd.telemetry.metrics import Instruments
from tests.unit.letters.doubles import ListLogger

LETTER = UUID(int=1)


class Scene:
    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader])
        self.log = ListLogger()
        self.telemetry = Telemetry(self.log, Instruments(self.provider.get_meter("test")))

    def values(self) -> dict[tuple[str, ...], float]:
        data = self.reader.get_metrics_data()
        assert data is not None
        values: dict[tuple[str, ...], float] = {}
        for metric in (
            metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
        ):
            for point in metric.data.data_points:
                if metric.name.startswith("outboxd_") and isinstance(point, NumberDataPoint):
                    labels = (f"{key}={value!s}" for key, value in sorted((point.attributes or {}).items()))
                    values[metric.name, *labels] = point.value
        return values

    def close(self) -> None:
        self.provider.shutdown()


def test_the_series_of_a_chain_exist_at_zero_before_anything_happens() -> None:
    scene = Scene()
    scene.telemetry.instruments.letters.declare("orders", ["postgres", "kafka"])
    values = {series: value for series, value in scene.values().items() if "pipeline=orders" in series}
    assert set(values.values()) == {0}
    for name in (
        "outboxd_sink_failures",
        "outboxd_sink_breaker_open",
        "outboxd_sink_in_use",
        "outboxd_letters_drained",
    ):
        for sink in ("postgres", "kafka"):
            assert (name, "pipeline=orders", f"sink={sink}") in values
    assert ("outboxd_chain_exhausted", "pipeline=orders") in values
    scene.close()


def test_letters_are_counted_by_sink_and_reason_and_the_sink_in_use_is_one() -> None:
    scene = Scene()
    written = events.LettersWritten(
        pipeline="orders",
        sink="kafka",
        rules=["otherwise", "otherwise"],
        letter_ids=[LETTER, LETTER],
        others=["postgres"],
    )
    scene.telemetry.emit(written)
    values = scene.values()
    assert values["outboxd_letters_written", "pipeline=orders", "reason=otherwise", "sink=kafka"] == 2
    assert values["outboxd_sink_in_use", "pipeline=orders", "sink=kafka"] == 1
    assert values["outboxd_sink_in_use", "pipeline=orders", "sink=postgres"] == 0
    scene.close()


EVENTS: list[tuple[Event, str, str]] = [
    (events.LettersWritten(pipeline="p", sink="s", rules=["r"], letter_ids=[LETTER]), "warning", "letters_written"),
    (
        events.LettersRefused(pipeline="p", sink="s", letter_ids=[LETTER], reason="x", next_sink=None),
        "warning",
        "letters_refused",
    ),
    (
        events.SinkFailed(pipeline="p", sink="s", reason="x", skipped_for=1.0, next_sink="t"),
        "warning",
        "sink_failed",
    ),
    (events.SinkRecovered(pipeline="p", sink="s"), "info", "sink_recovered"),
    (events.SinkAnsweredLate(pipeline="p", sink="s"), "info", "sink_answered_late"),
    (events.SinkCloseFailed(pipeline="p", sink="s", reason="x"), "warning", "sink_close_failed"),
    (
        events.ChainExhausted(pipeline="p", reason="chain_exhausted", letter_ids=[LETTER], message="x"),
        "error",
        "chain_exhausted",
    ),
    (events.ObserverFailed(pipeline="p", error="x"), "warning", "letter_observer_failed"),
    (events.ClassifierFailed(pipeline="p", classifier="c", error="x"), "error", "classifier_failed"),
    (
        events.LettersDrained(pipeline="p", sink="s", count=2, new=1, foreign=1, lag=3.0),
        "info",
        "letters_drained",
    ),
    (events.DrainFailed(pipeline="p", sink="s", reason="x", retry_in=1.0), "warning", "drain_failed"),
    (
        events.ReplayFinished(pipeline="p", job_id=LETTER, letter_id=LETTER, attempt=1, error=None),
        "info",
        "replay_finished",
    ),
    (
        events.ReplayReturned(pipeline="p", job_id=LETTER, letter_id=LETTER, reason="x"),
        "info",
        "replay_returned",
    ),
    (events.ReplayClaimFailed(pipeline="p", reason="x", retry_in=1.0), "warning", "replay_claim_failed"),
]


@pytest.mark.parametrize(("event", "level", "name"), EVENTS, ids=[name for _, _, name in EVENTS])
def test_each_event_has_one_log_line_with_a_stable_name(event: Event, level: str, name: str) -> None:
    scene = Scene()
    scene.telemetry.emit(event)
    [(logged_level, logged_name, fields)] = scene.log.lines
    assert (logged_level, logged_name, fields["pipeline"]) == (level, name, "p")
    scene.close()


def test_every_event_is_tried_here() -> None:
    classes = {name for name in events.__all__ if name != "LetterInstruments"}
    assert {type(event).__name__ for event, _, _ in EVENTS} == classes


def test_a_drain_with_nothing_new_only_measures() -> None:
    scene = Scene()
    scene.telemetry.emit(events.LettersDrained(pipeline="p", sink="s", count=0, new=0, foreign=0, lag=0.0))
    assert scene.log.lines == []
    assert scene.values()["outboxd_drain_lag_seconds", "pipeline=p", "sink=s"] == 0
    scene.close()

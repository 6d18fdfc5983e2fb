"""Hooks of plugins are called so that nobody is hurt by one that raises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from outboxd.api import hookimpl
from outboxd.errors import PluginBroken
from outboxd.records import Letter
from outboxd.registry import Hooks, build_registry
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.metrics import Instruments
from tests.unit.plugin_doubles import FakeEntryPoint, FakeModule
from tests.unit.registry.letters import letter


class RecordingLogger:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def warning(self, event: str, **fields: object) -> None:
        self.lines.append((event, fields))

    debug = info = error = warning


class Observed:
    """Hooks of some modules, with what was logged and counted."""

    def __init__(self, *modules: object) -> None:
        self.reader = InMemoryMetricReader()
        provider = MeterProvider(metric_readers=[self.reader])
        self.logger = RecordingLogger()
        telemetry = Telemetry(self.logger, Instruments(provider.get_meter("test")))
        points = [FakeEntryPoint(module, name=f"plugin{index}") for index, module in enumerate(modules)]
        self.hooks = Hooks(build_registry(points), telemetry)

    def failures(self) -> int:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
        (counter,) = [metric for metric in metrics if metric.name == "outboxd_plugin_hook_failures"]
        points: Any = counter.data.data_points
        return sum(int(point.value) for point in points)


def module(**functions: Any) -> FakeModule:
    made = FakeModule()
    for name, function in functions.items():
        setattr(made, f"outboxd_{name}", hookimpl(function))
    return made


def test_observers_are_told_with_the_arguments_that_they_ask_for() -> None:
    told: list[object] = []

    def letter_written(sink: str) -> None:
        told.append(sink)

    Observed(module(letter_written=letter_written)).hooks.notify("outboxd_letter_written", letter=letter(), sink="home")
    assert told == ["home"]


def test_an_observer_that_raises_is_logged_and_counted_and_the_others_are_told() -> None:
    told: list[str] = []

    def raising(sink: str) -> None:
        raise RuntimeError(f"no {sink}")

    def telling(sink: str) -> None:
        told.append(sink)

    observed = Observed(module(letter_written=telling), module(letter_written=raising), module(letter_written=telling))
    assert observed.failures() == 0
    observed.hooks.notify("outboxd_letter_written", letter=letter(), sink="home")
    assert told == ["home", "home"]
    assert observed.failures() == 1
    ((event, fields),) = observed.logger.lines
    assert (event, fields["plugin"], fields["error"]) == ("hook_failed", "acme:plugin1", "RuntimeError: no home")


def test_a_redacted_letter_takes_the_place_of_the_first() -> None:
    def redact(letter: Letter) -> Letter:
        return replace(letter, value=None)

    assert Observed(module(redact=redact)).hooks.redact(letter()).value is None
    assert Observed().hooks.redact(letter()) == letter()


def test_a_letter_that_cannot_be_redacted_is_not_handed_on() -> None:
    def raising(letter: Letter) -> Letter:
        raise RuntimeError(letter.pipeline)

    def renaming(letter: Letter) -> Letter:
        return replace(letter, id=UUID(int=9))

    for redact in (raising, renaming):
        with pytest.raises(PluginBroken):
            Observed(module(redact=redact)).hooks.redact(letter())


def test_a_finer_fingerprint_wins_and_one_that_raises_has_no_say() -> None:
    def finer(letter: Letter) -> str:
        return f"{letter.fingerprint}-fine"

    def raising(letter: Letter) -> str:
        raise RuntimeError(letter.pipeline)

    assert Observed(module(fingerprint=finer)).hooks.fingerprint(letter()) == "f-fine"
    assert Observed().hooks.fingerprint(letter()) == "f"
    observed = Observed(module(fingerprint=finer), module(fingerprint=raising))
    assert observed.hooks.fingerprint(letter()) == "f-fine"
    assert observed.failures() == 1

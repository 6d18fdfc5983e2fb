"""Durations and sizes carry their unit."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from outboxd.api import Duration, PluginSettings, Size
from outboxd.api.settings import format_duration, parse_duration, parse_size


class Example(PluginSettings):
    """Settings for these tests."""

    wait: Duration = timedelta(seconds=5)
    """How long."""
    room: Size = 1024
    """How much."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("200ms", 0.2), ("5s", 5), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("7d", 604_800), ("0s", 0)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", [5, 5.0, "5", "5 s", "", "-5s", "5sec", None, True, "1e3s"])
def test_a_duration_without_a_proper_unit_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(value)


def test_a_bare_number_is_refused_with_the_spelling_to_use() -> None:
    with pytest.raises(ValueError, match='"30s" for seconds or "30ms"'):
        parse_duration(30)
    with pytest.raises(ValueError, match='"1024B" for bytes'):
        parse_size(1024)


@given(st.integers(min_value=0, max_value=10**12))
def test_a_duration_is_written_as_it_is_read(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(("text", "size"), [("1B", 1), ("64KiB", 65_536), ("1MiB", 1_048_576), ("1GB", 10**9)])
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert Example(room=text).room == size  # type: ignore[arg-type]  # what YAML gives


@pytest.mark.parametrize("value", ["1.5MiB", "1 MiB", "MiB", "1Mb", False, [1]])
def test_a_size_without_a_proper_unit_is_refused(value: object) -> None:
    with pytest.raises(ValidationError):
        Example(room=value)  # type: ignore[arg-type]  # what YAML may give


def test_settings_are_frozen_know_their_keys_and_do_not_show_what_they_refuse() -> None:
    with pytest.raises(ValidationError) as caught:
        Example(wait="s3cret", other=1)  # type: ignore[arg-type,call-arg]  # what YAML may give
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ValidationError):
        Example().wait = timedelta(seconds=1)  # type: ignore[misc]  # frozen


def test_the_docstring_under_a_field_is_its_description() -> None:
    assert Example.model_json_schema()["properties"]["wait"]["description"] == "How long."

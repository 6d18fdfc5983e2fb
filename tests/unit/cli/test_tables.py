"""Times as people say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outboxd.cli.tables import ago, print_table

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (timedelta(milliseconds=300), "now"),
        (timedelta(seconds=59), "59s ago"),
        (timedelta(minutes=61), "1h ago"),
        (timedelta(days=3, hours=4), "3d ago"),
        (timedelta(minutes=-5), "in 5m"),
    ],
)
def test_a_moment_is_said_as_its_distance_from_now(before: timedelta, said: str) -> None:
    assert ago((NOW - before).isoformat(), now=NOW) == said
    assert ago(None) == "-"


def test_a_piped_table_is_never_cut_and_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["name", "state"], [["x" * 300, "RUNNING"]])
    written = capsys.readouterr().out
    assert "x" * 300 in written
    assert "\x1b" not in written

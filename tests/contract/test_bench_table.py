"""The figures in the documentation are those of the committed results, and the tables tell what went wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench.results import Absent, Consumption, Drain, Machine, Results
from bench.table import markers, tables, write_tables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "performance.md"
COMMITTED = sorted((ROOT / "bench" / "results").glob("*.json"))

MACHINE = Machine(system="Linux x86_64", processor="a processor", cores=2, memory_gib=8, python="3.11.7")
DRAIN = Drain(
    contender="outboxd",
    repeat=0,
    rows=1_000,
    rate=50_000,
    seconds=0.02,
    missing=0,
    extra=0,
    out_of_order=0,
    cpu={"relay": 10.0, "postgres": 5.0, "broker": 2.0},
    peak_mib=99.6,
)


def _results(*drains: Drain) -> Results:
    settings = {"rows": 1_000, "repeats": 2}
    return Results(
        command="relay", taken="2026-01-01", machine=MACHINE, versions={}, settings=settings, drains=list(drains)
    )


def _line(text: str, contender: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.startswith(f"| {contender} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_there_are_results_of_both_benchmarks() -> None:
    commands = [Results.from_json(path.read_text("utf-8")).command for path in COMMITTED]
    assert sorted(commands) == ["consumer", "relay"]


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.stem)
def test_the_page_shows_the_committed_results(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text("utf-8"), "utf-8")
    write_tables(copy, [Results.from_json(path.read_text("utf-8"))])
    assert copy.read_text("utf-8") == PAGE.read_text("utf-8"), (
        "write it with: python -m bench table bench/results/*.json --write docs/performance.md"
    )


def test_results_survive_their_file() -> None:
    results = _results(DRAIN)
    results.consumptions.append(
        Consumption(
            contender="outboxd",
            repeat=0,
            measure="each record",
            records=10,
            rate=1,
            seconds=10,
            missing=0,
            extra=0,
            uncommitted=0,
            cpu={"consumer": 1.0},
            peak_mib=1,
        )
    )
    results.absent.append(Absent(contender="Debezium", measure="drain", reason="it is late"))
    assert Results.from_json(results.to_json()) == results


def test_a_median_stands_with_its_range_and_rates_are_set_beside_the_baseline_of_their_own_repeat() -> None:
    text = tables(
        _results(
            dataclasses.replace(DRAIN, contender="raw send_batch", rate=100_000),
            DRAIN,
            dataclasses.replace(DRAIN, contender="raw send_batch", repeat=1, rate=200_000),
            dataclasses.replace(DRAIN, repeat=1, rate=20_000),
        )
    )
    line = _line(text, "outboxd")
    assert line[1] == "35,000 (20,000 to 50,000)"
    assert line[2] == "0.30 (0.10 to 0.50)"


def test_what_was_lost_repeated_or_out_of_order_is_added_up_over_the_repeats() -> None:
    text = tables(
        _results(
            dataclasses.replace(DRAIN, missing=1, extra=2, out_of_order=3),
            dataclasses.replace(DRAIN, repeat=1, missing=10, extra=20, out_of_order=30),
        )
    )
    assert _line(text, "outboxd")[-3:] == ["11", "22", "33"]


def test_what_could_not_be_measured_is_said() -> None:
    results = _results(DRAIN)
    results.absent.append(Absent(contender="Debezium", measure="drain", reason="it failed\nin many lines", repeat=1))
    assert "* Not measured: Debezium, drain (repeat 1): it failed\n" in tables(results)


def test_only_what_stands_between_the_markers_is_replaced(tmp_path: Path) -> None:
    begin, end = markers("relay")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{begin}\nold\n{end}\nafter\n", "utf-8")
    write_tables(page, [_results(DRAIN)])
    text = page.read_text("utf-8")
    assert text.startswith(f"before\n{begin}\n")
    assert text.endswith(f"\n{end}\nafter\n")
    assert "old" not in text
    assert "| outboxd | 50,000 |" in text


def test_a_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no markers\n", "utf-8")
    with pytest.raises(SystemExit, match="has no lines"):
        write_tables(page, [_results(DRAIN)])

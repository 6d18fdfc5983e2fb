"""Result files as Markdown: medians with their range, what was lost or repeated, and what it ran on."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from bench.results import Consumption, Drain, Latency, Results

__all__ = ["markers", "tables", "write_tables"]

Run = TypeVar("Run", Drain, Latency, Consumption)

BASELINES = {"relay": "raw send_batch", "consumer": "raw aiokafka"}
_FAULTS = ("lost", "extra", "uncommitted")


def tables(results: Results) -> str:
    """Everything that a result file says, as Markdown."""
    parts = [_relay_tables(results) if results.command == "relay" else _consumer_tables(results), _absent(results)]
    return "\n\n".join(part for part in [_taken(results), *parts] if part) + "\n"


def markers(command: str) -> tuple[str, str]:
    """The lines of a page between which the tables of a command stand."""
    return f"<!-- bench:{command} -->", f"<!-- /bench:{command} -->"


def write_tables(page: Path, results: Iterable[Results]) -> None:
    """Put the tables between their markers. Raises SystemExit when the page has none."""
    text = page.read_text("utf-8")
    for found in results:
        begin, end = markers(found.command)
        head, began, rest = text.partition(f"{begin}\n")
        _, ended, tail = rest.partition(f"{end}\n")
        if not began or not ended:
            raise SystemExit(f"{page} has no lines {begin} and {end}")
        text = f"{head}{begin}\n\n{tables(found)}\n{end}\n{tail}"
    page.write_text(text, "utf-8")


def _taken(results: Results) -> str:
    machine, versions = results.machine, results.versions
    programs = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{results.taken}: {machine.system}, {machine.processor}, {machine.cores} cores, {machine.memory_gib:g} GiB, "
        f"Python {machine.python}; {programs}. {results.settings['repeats']} repeats; medians with their range."
    )


def _relay_tables(results: Results) -> str:
    rows = results.settings["rows"]
    head = [
        "relay",
        "rows/s",
        "of raw",
        "CPU us/row: relay",
        "Postgres",
        "broker",
        "peak MiB",
        "lost",
        "extra",
        "disorder",
    ]
    drains = _grouped(results.drains)
    lines = [
        [
            name,
            _spread([run.rate for run in runs], "{:,.0f}"),
            _ratio(runs, drains.get(BASELINES["relay"], [])),
            *_cpu(runs, ("relay", "postgres", "broker"), "{:.1f}"),
            _median([run.peak_mib for run in runs], "{:.0f}"),
            *_sums(runs, ("missing", "extra", "out_of_order")),
        ]
        for name, runs in drains.items()
    ]
    parts = [f"Drain of {rows:,} rows:", _markdown(head, lines)] if lines else []
    for rate in sorted({run.rate for run in results.latencies}):
        parts += [f"From commit to consumer, {rate:,} transactions of one row a second:", _latencies(results, rate)]
    return "\n\n".join(parts)


def _latencies(results: Results, rate: int) -> str:
    head = [
        "relay",
        "p50 ms",
        "p90",
        "p99",
        "max",
        "reached/s",
        "CPU us/row: relay",
        "Postgres",
        "broker",
        "lost",
        "extra",
    ]
    runs_of = _grouped([run for run in results.latencies if run.rate == rate])
    lines = [
        [
            name,
            *(_spread([getattr(run, field) for run in runs], "{:.1f}") for field in ("p50", "p90", "p99", "max")),
            _median([run.achieved for run in runs], "{:,.0f}"),
            *_cpu(runs, ("relay", "postgres", "broker"), "{:.0f}"),
            *_sums(runs, ("missing", "extra")),
        ]
        for name, runs in runs_of.items()
    ]
    return _markdown(head, lines)


def _consumer_tables(results: Results) -> str:
    titles = {
        "each record": "A handler that does nothing, for each record of {rows:,}:",
        "batches": "A handler that does nothing, for each batch of {rows:,} records:",
        "5 ms": "A handler that waits 5 ms, for {slow_records:,} records of {slow_keys} keys in one partition, 64 at once:",
    }
    parts: list[str] = []
    for measure, title in titles.items():
        runs = [run for run in results.consumptions if run.measure == measure]
        if runs:
            parts += [title.format(**results.settings), _consumptions(runs)]
    return "\n\n".join(parts)


def _consumptions(all_runs: Sequence[Consumption]) -> str:
    head = ["consumer", "records", "records/s", "of raw", "CPU us/record: consumer", "broker", "peak MiB", *_FAULTS]
    runs_of = _grouped(all_runs)
    lines = [
        [
            name,
            f"{runs[0].records:,}",
            _spread([run.rate for run in runs], "{:,.0f}"),
            _ratio(runs, runs_of.get(BASELINES["consumer"], [])),
            *_cpu(runs, ("consumer", "broker"), "{:.1f}"),
            _median([run.peak_mib for run in runs], "{:.0f}"),
            *_sums(runs, ("missing", "extra", "uncommitted")),
        ]
        for name, runs in runs_of.items()
    ]
    return _markdown(head, lines)


def _absent(results: Results) -> str:
    return "\n".join(
        f"* Not measured: {one.contender}, {one.measure}"
        + (f" (repeat {one.repeat})" if one.repeat is not None else "")
        + f": {one.reason.splitlines()[0]}"
        for one in results.absent
    )


def _grouped(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """The runs of each contender, in the order of their first turns."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.contender, []).append(run)
    return groups


def _ratio(runs: Sequence[Drain] | Sequence[Consumption], baseline: Sequence[Drain] | Sequence[Consumption]) -> str:
    """The rates relative to the baseline's of the same repeat: what the machine does to one it does to the other."""
    rates = {run.repeat: run.rate for run in baseline}
    return _spread([run.rate / rates[run.repeat] for run in runs if run.repeat in rates], "{:.2f}")


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return "-"
    low, middle, high = (form.format(one) for one in (min(values), statistics.median(values), max(values)))
    return middle if len(values) == 1 else f"{middle} ({low} to {high})"


def _median(values: Sequence[float], form: str) -> str:
    return form.format(statistics.median(values)) if values else "-"


def _markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---", *("---:" for _ in head[1:])], *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _cpu(runs: Sequence[Run], processes: Iterable[str], form: str) -> list[str]:
    """The medians of each process; a dash for one that had no part."""
    return [_median([run.cpu[one] for run in runs if one in run.cpu], form) for one in processes]


def _sums(runs: Sequence[Run], fields: Iterable[str]) -> list[str]:
    return [f"{sum(getattr(run, field) for run in runs):,}" for field in fields]

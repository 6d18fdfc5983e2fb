"""What people read: tables that fit the terminal, times as distances from now, and a hint for the next command."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["ago", "print_fields", "print_hint", "print_table"]

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_STYLES: Final = {
    "RUNNING": "green",
    "RESOLVED": "green",
    "DONE": "green",
    "STALLED": "yellow",
    "STARTING": "yellow",
    "DRAINING": "yellow",
    "RESTARTING": "yellow",
    "WAITING": "yellow",
    "FAILED": "red",
    "NEW": "red",
}


def ago(moment: str | None, *, now: datetime | None = None) -> str:
    """An ISO 8601 moment as a distance from now: `5s ago`, `2h ago`, `in 3m`."""
    if moment is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(moment)).total_seconds()
    if abs(seconds) < 1:
        return "now"
    amount = next(f"{int(abs(seconds)) // size}{unit}" for unit, size in _UNITS if abs(seconds) >= size)
    return f"{amount} ago" if seconds > 0 else f"in {amount}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on standard output; without colour, and without cutting anything, when it is piped."""
    console = _console()
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console.print(table)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Names and values below each other; values of several lines are set in."""
    console = _console()
    shown = [(name, str("-" if value is None else value)) for name, value in fields]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        first, *others = value.splitlines() or [""]
        console.print(Text(f"{name:<{width}}  ", style="bold") + _cell(first), soft_wrap=True)
        for line in others:
            console.print(Text(" " * (width + 2) + line), soft_wrap=True)


def print_hint(text: str) -> None:
    """What to do next; on standard error, so that a pipe gets the result only."""
    print(text, file=sys.stderr)


def _console() -> Console:
    # A pipe has no width: what reads it must not get values that were cut at eighty columns.
    return Console() if sys.stdout.isatty() else Console(width=1_000, no_color=True, highlight=False)


def _cell(value: object) -> Text:
    text = "-" if value is None else str(value)
    return Text(text, style=_STYLES.get(text, ""))

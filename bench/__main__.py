"""The command line: ``python -m bench relay|consumer|profile|table``."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from bench.options import Options
from bench.results import Results
from bench.table import tables, write_tables

__all__ = ["main"]

Result = TypeVar("Result")

FULL_ROWS = {"relay": 300_000, "consumer": 500_000}
SHORT_ROWS = {"relay": 100_000, "consumer": 200_000}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command."""
    chosen = _parser().parse_args(arguments)
    if chosen.command == "table":
        results = [Results.from_json(path.read_text("utf-8")) for path in chosen.files]
        if chosen.write is None:
            print("\n".join(tables(found) for found in results))
        else:
            write_tables(chosen.write, results)
    elif chosen.command == "profile":
        from bench.profile import profile

        print(_run(lambda: profile(chosen.what, rows=chosen.rows, native=not chosen.python_only)))
    else:
        _measure(chosen)


def _measure(chosen: argparse.Namespace) -> None:
    from bench.consumer import measure_consumers
    from bench.relay import measure_relays

    # A topic that was made a moment ago is asked for again by the client itself; its words about that help nobody.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    measure = {"relay": measure_relays, "consumer": measure_consumers}[chosen.command]
    rows = (SHORT_ROWS if chosen.short else FULL_ROWS)[chosen.command]
    options = Options(
        rows=rows if chosen.rows is None else chosen.rows,
        repeats=chosen.repeats if chosen.repeats is not None else (2 if chosen.short else 5),
        seconds=chosen.seconds if chosen.seconds is not None else (10 if chosen.short else 30),
        only=tuple(name for name in chosen.only.split(",") if name),
    )
    results = _run(lambda: measure(options))
    if chosen.output is not None:
        chosen.output.parent.mkdir(parents=True, exist_ok=True)
        chosen.output.write_text(results.to_json(), "utf-8")
    print(tables(results))


def _run(work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    # SIGTERM ends it as Ctrl-C does: whatever was started is stopped and removed on the way out.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return asyncio.run(work())
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above zero")
    return number


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (
        ("relay", "drain an outbox, and see rows from commit to consumer, beside Debezium and a raw producer"),
        ("consumer", "read a topic, beside FastStream, raw aiokafka and a Connect sink"),
    ):
        command = commands.add_parser(name, help=what, description=what)
        command.add_argument("--rows", type=_positive, help="rows or records of one measurement")
        command.add_argument("--repeats", type=_positive, help="how often everybody has a turn")
        command.add_argument("--seconds", type=_positive, help="how long one latency run takes")
        command.add_argument("--only", default="", help="contenders, with commas; default: all")
        command.add_argument("--short", action="store_true", help="fewer rows and repeats: some minutes")
        command.add_argument("--output", type=Path, help="write every measurement to this JSON file")
    profiling = commands.add_parser("profile", help="where the daemon's CPU goes, for each row")
    profiling.add_argument("what", choices=["relay", "consumer"])
    profiling.add_argument("--rows", type=_positive, default=600_000)
    profiling.add_argument("--python-only", action="store_true", help="do not look into compiled code")
    table = commands.add_parser("table", help="the Markdown tables of result files")
    table.add_argument("files", nargs="+", type=_existing)
    table.add_argument("--write", type=Path, help="put them between their markers in this page")
    return parser


if __name__ == "__main__":
    main()

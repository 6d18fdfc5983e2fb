"""`python -m tests.simulation`: many seeds on all cores, or one seed with its schedule."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context

from tests.simulation.runner import STORIES, Outcome, run_seed

_CHUNK = 8
_SHOWN_LINES = 120


def main(arguments: Sequence[str]) -> int:
    """Run the seeds that are asked for; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_range, default=range(300), help="how many, or FIRST:LAST (default 300)")
    parser.add_argument("--seed", type=int, help="one seed, with its whole schedule")
    parser.add_argument("--story", choices=sorted(STORIES), help="only this kind of story (default: the seed decides)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--most-failures", type=int, default=5, help="stop after so many (default 5)")
    parser.add_argument("--digests", action="store_true", help="print each seed's digest: two runs must agree")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        outcome = run_seed(options.seed, options.story, is_told=True)
        _show(outcome, lines=sys.maxsize)
        return outcome.failure is not None
    began, failures, count = time.monotonic(), 0, 0
    for outcome in _outcomes(options.seeds, options.story, options.jobs):
        count += 1
        if options.digests:
            print(f"{outcome.seed} {outcome.digest:08x}")
        if outcome.failure is not None:
            failures += 1
            _show(outcome, lines=_SHOWN_LINES)
            if failures >= options.most_failures:
                break
    seconds = time.monotonic() - began
    print(f"{count} seeds, {failures} failed, {seconds:.1f} s on {options.jobs} processes")
    return failures > 0


def _outcomes(seeds: range, story: str | None, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from (run_seed(seed, story) for seed in seeds)
        return
    with get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_job, ((seed, story) for seed in seeds), chunksize=_CHUNK)
        pool.terminate()


def _job(job: tuple[int, str | None]) -> Outcome:
    return run_seed(*job)


def _show(outcome: Outcome, lines: int) -> None:
    for line in outcome.schedule[-lines:]:
        print(line)
    if outcome.failure is not None:
        print(outcome.trace)
        print(f"seed {outcome.seed} ({outcome.story}) failed: {outcome.failure}")
        print(f"    again: {outcome.command}\n")
    else:
        print(f"seed {outcome.seed} ({outcome.story}): clean, digest {outcome.digest:08x}")


def _range(text: str) -> range:
    first, _, last = text.rpartition(":")
    try:
        seeds = range(int(first or 0), int(last))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seeds nor FIRST:LAST") from None
    if not seeds:
        raise argparse.ArgumentTypeError(
            f"{text} are no seeds: name at least one, or FIRST:LAST with LAST behind FIRST"
        )
    return seeds


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of texts is part of a schedule
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main(sys.argv[1:]))

"""Several hundred seeds, in processes of their own: the order of hashes is part of a schedule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted import MISTAKES, Mistake, find

_ROOT = Path(__file__).parents[2]


def _simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments], cwd=_ROOT, capture_output=True, text=True, check=False
    )


def test_no_fault_of_several_hundred_seeds_breaks_an_invariant() -> None:
    finished = _simulate("--seeds", "400")
    assert finished.returncode == 0, finished.stdout[-20_000:] + finished.stderr[-5_000:]


def test_a_seed_gives_the_same_run_each_time() -> None:
    first, second = (_simulate("--seeds", "1000:1040", "--digests").stdout.splitlines()[:-1] for _ in range(2))
    assert len(first) == 40
    assert first == second


@pytest.mark.parametrize("seeds", ["0", "-5", "10:5", "5:", "many"])
def test_what_names_no_seeds_is_refused(seeds: str) -> None:
    finished = _simulate(f"--seeds={seeds}")
    assert finished.returncode == 2
    assert "seeds" in finished.stderr.splitlines()[-1]


def test_a_clean_seed_tells_its_schedule_when_it_is_asked_for() -> None:
    finished = _simulate("--seed", "278", "--story", "consumer")
    assert finished.returncode == 0
    assert "all trouble ends" in finished.stdout


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name.replace(" ", "-"))
def test_a_planted_mistake_is_found(mistake: Mistake) -> None:
    found = find(mistake, seeds=1000)
    assert found.returncode == 1, f"a thousand seeds do not see that {mistake.name}\n{found.stdout}\n{found.stderr}"
    assert "failed: Violation: invariant" in found.stdout, found.stdout[-5_000:] + found.stderr[-5_000:]

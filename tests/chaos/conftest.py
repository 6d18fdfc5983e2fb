"""How long the scenarios run and by which seeds; servers with proxies, and daemons that end with their test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from outboxd.testing.chaos import ChaosStack, Daemon

ROOT = Path(__file__).parents[2]
SEEDS = "1"

MakeDaemon = Callable[..., Daemon]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--chaos", choices=["short", "long"], default="short", help="how long the chaos scenarios run")
    parser.addoption("--chaos-seeds", default=SEEDS, help="seeds of the chaos scenarios, with commas between")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        seeds = str(metafunc.config.getoption("--chaos-seeds", SEEDS))
        metafunc.parametrize("seed", [int(seed) for seed in seeds.split(",")], ids=lambda seed: f"seed {seed}")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: a chaos scenario that only `--chaos=long` runs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--chaos", "short") == "short":
        skip = pytest.mark.skip(reason="long: make chaos")
        for item in items:
            if item.get_closest_marker("long") is not None:
                item.add_marker(skip)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much a scenario does."""

    is_long: bool

    def of(self, *, short: float, long: float) -> float:
        """One of the two."""
        return long if self.is_long else short


@pytest.fixture
def scale(request: pytest.FixtureRequest) -> Scale:
    return Scale(is_long=request.config.getoption("--chaos", "short") == "long")


@pytest_asyncio.fixture
async def stack(stack_folder: Path) -> AsyncIterator[ChaosStack]:
    """A broker and a Postgres of this test's own, each behind a proxy."""
    async with AsyncExitStack() as exits:
        servers = ChaosStack(stack_folder)
        exits.push_async_callback(servers.remove)
        yield await servers.start()
        # Nobody needs what is in them: an orderly end would take seconds.
        await asyncio.gather(servers.kafka.kill(), servers.postgres.kill())


@pytest_asyncio.fixture
async def make_daemon(tmp_path: Path) -> AsyncIterator[MakeDaemon]:
    """``make_daemon(configuration, name="relay-1", **environment)``; every one is killed after the test."""
    daemons: list[Daemon] = []

    def make(configuration: str, name: str, **environment: str) -> Daemon:
        daemon = Daemon(tmp_path / name, configuration, name=name, environment={"PYTHONPATH": str(ROOT), **environment})
        daemons.append(daemon)
        return daemon

    yield make
    await asyncio.gather(*(daemon.kill() for daemon in daemons))
    for daemon in daemons:
        await daemon.close()
    left = [process.cmdline() for process in psutil.Process().children(recursive=True) if _is_of(process, tmp_path)]
    assert left == []


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(str(folder) in argument for argument in process.cmdline())
    except psutil.Error:
        return False

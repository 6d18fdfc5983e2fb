"""Stages for stories about Kafka, as a plugin of the modules that tell them: the double, the run's broker, one to break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from outboxd.dev import KafkaServer
from tests.conformance.kafka_double import DoubleWorld
from tests.conformance.kafka_real import RealWorld
from tests.conformance.telling import Stage, in_real_time, in_virtual_time


@pytest.fixture(params=["double", "broker"])
def kafka(request: pytest.FixtureRequest) -> Stage:
    """A world with one cluster."""
    match request.param:
        case "double":
            return in_virtual_time(lambda: DoubleWorld().open())
        case "broker":
            bootstrap: str = request.getfixturevalue("kafka_bootstrap")
            return in_real_time(lambda: RealWorld(bootstrap).open())
        case _:
            server: KafkaServer = request.getfixturevalue("fragile_broker")
            if not server.is_running:  # the last story failed while it was away
                _in_own_loop(server.start)
            return in_real_time(lambda: RealWorld(server.bootstrap_servers, server).open())


@pytest.fixture(scope="session")
def fragile_broker(servers_folder: Path, kafka_bootstrap: str) -> Iterator[KafkaServer]:
    """A broker for the stories that freeze or kill theirs, one after another; each leaves it whole.

    The run's own broker goes first: it prepares what makes later starts quick.
    """
    server = KafkaServer(servers_folder / "fragile")
    _in_own_loop(server.start)
    yield server
    _in_own_loop(server.remove)


def _in_own_loop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with ThreadPoolExecutor(max_workers=1) as pool:
        pool.submit(lambda: asyncio.run(work())).result()

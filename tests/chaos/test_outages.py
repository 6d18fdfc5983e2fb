"""A server that goes silent: the status says so, nothing is lost, and the work goes on by itself (invariant 12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest

from outboxd.testing.chaos import (
    Books,
    ChaosStack,
    Daemon,
    Fault,
    Writers,
    blackhole,
    check_consumer,
    check_relay,
    fill_topic,
    freeze,
    read_topic,
    refuse,
    until,
)
from tests.chaos import configuration
from tests.chaos.configuration import GROUP, TOPIC
from tests.chaos.conftest import MakeDaemon

LONG = [pytest.mark.long]
TAKEN = "parcels"
PARTITIONS = 3
SHOWN_WITHIN = timedelta(seconds=40)
BACK_WITHIN = timedelta(seconds=90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A server goes silent, and what the pipelines are to say."""

    fault: Callable[[ChaosStack], Fault]
    relay: str
    consumer: str


def _broker(fault: Callable[[ChaosStack], Fault]) -> Outage:
    return Outage(fault=fault, relay="broker_unreachable", consumer="broker_unreachable")


def _database(fault: Callable[[ChaosStack], Fault]) -> Outage:
    return Outage(fault=fault, relay="database_unreachable", consumer="dependency_out")


FROZEN_BROKER = _broker(lambda stack: freeze(stack.kafka))
BLACKHOLED_BROKER = _broker(lambda stack: blackhole(stack.kafka_proxy))
REFUSING_BROKER = _broker(lambda stack: refuse(stack.kafka_proxy))
FROZEN_DATABASE = _database(lambda stack: freeze(stack.postgres))
BLACKHOLED_DATABASE = _database(lambda stack: blackhole(stack.postgres_proxy))
REFUSING_DATABASE = _database(lambda stack: refuse(stack.postgres_proxy))


async def _begun(stack: ChaosStack, make_daemon: MakeDaemon) -> Daemon:
    """One daemon: a relay to one topic, and a consumer of another one, so that each has work of its own."""
    await stack.kafka.create_topic(TOPIC, partitions=PARTITIONS)
    await stack.kafka.create_topic(TAKEN, partitions=PARTITIONS)
    await stack.kafka.create_topic(f"{TAKEN}.dlq")
    dsn = await stack.postgres.create_database("shop")
    text = configuration.daemon(
        "both",
        configuration.relay(),
        configuration.consumer(TAKEN, handler="take_all"),
        bootstrap_servers=stack.proxied_bootstrap_servers,
        dsn=stack.proxied_dsn("shop"),
    )
    daemon = make_daemon(text, "both", CHAOS_DSN=stack.proxied_dsn("shop"))
    await daemon.migrate()
    async with Books(dsn) as books:
        await books.create()
    await daemon.start()
    await daemon.until_running()
    return daemon


async def _fill(stack: ChaosStack) -> None:
    await fill_topic(stack.bootstrap_servers, TAKEN, partitions=PARTITIONS, records=600)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "outages",
    [
        pytest.param([BLACKHOLED_BROKER, FROZEN_DATABASE], id="blackholed broker, then frozen Postgres"),
        pytest.param([FROZEN_BROKER, BLACKHOLED_DATABASE], id="frozen broker, then blackholed Postgres", marks=LONG),
        pytest.param([REFUSING_BROKER, REFUSING_DATABASE], id="refusing broker, then refusing Postgres", marks=LONG),
    ],
)
async def test_a_silent_server_is_in_the_status_and_the_work_goes_on_afterwards(
    stack: ChaosStack, make_daemon: MakeDaemon, outages: Sequence[Outage]
) -> None:
    daemon = await _begun(stack, make_daemon)
    async with Writers(dsn=stack.dsn("shop"), topic=TOPIC, seed=1, connections=4) as writers:
        for outage in outages:
            fault = outage.fault(stack)
            await fault.begin()
            try:
                if outage.consumer == "dependency_out":
                    await _fill(stack)  # a consumer that has nothing to do needs nobody
                await daemon.until_stalled("outbox", outage.relay, within=SHOWN_WITHIN)
                await daemon.until_stalled("taker", outage.consumer, within=SHOWN_WITHIN)
            finally:
                await fault.end()
            await daemon.until_running(within=BACK_WITHIN)
    await _require_all_through(stack, daemon, writers)


async def _require_all_through(stack: ChaosStack, daemon: Daemon, writers: Writers) -> None:
    async with Books(stack.dsn("shop")) as books:

        async def is_through() -> bool:
            committed = await stack.kafka.committed_offsets(GROUP, TAKEN, partitions=PARTITIONS)
            return not await books.pending() and sum(committed.values()) == len(taken)

        taken = await read_topic(stack.bootstrap_servers, TAKEN)
        await until(is_through, within=BACK_WITHIN, what="every row is relayed and handled", but=daemon.describe)
        report = check_relay(
            written=await books.written(),
            records=await read_topic(stack.bootstrap_servers, TOPIC),
            pending=await books.pending(),
            ledger=writers.ledger,
        ) + check_consumer(
            records=taken,
            handled=await books.handled(TAKEN),
            letters=await books.letters(TAKEN),
            committed=await stack.kafka.committed_offsets(GROUP, TAKEN, partitions=PARTITIONS),
            fails=lambda _: False,
        )
    print(report)
    assert report.holds, str(report)
    assert report.counts["rows committed"] > 20, writers.ledger.last_error
    assert daemon.is_running

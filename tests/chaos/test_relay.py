"""The relay under faults: whatever dies, freezes or goes silent, the topic holds what was committed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from outboxd.testing.chaos import (
    Books,
    ChaosStack,
    Daemon,
    Ledger,
    NotSeen,
    Schedule,
    Writers,
    blackhole,
    check_relay,
    cut,
    freeze,
    kill,
    lost_answers,
    read_topic,
    terminate,
    until,
)
from tests.chaos import configuration
from tests.chaos.configuration import TOPIC
from tests.chaos.conftest import MakeDaemon, Scale

FINISH = timedelta(seconds=90)


async def _begun(stack: ChaosStack, make_daemon: MakeDaemon, *, replicas: int, proxied: bool) -> list[Daemon]:
    """Relays that run on a fresh database and topic."""
    await stack.kafka.create_topic(TOPIC, partitions=6)
    dsn = await stack.postgres.create_database("shop")
    kafka = stack.proxied_bootstrap_servers if proxied else stack.bootstrap_servers
    daemons = [
        make_daemon(
            configuration.daemon(
                name,
                configuration.relay(),
                bootstrap_servers=kafka,
                dsn=stack.proxied_dsn("shop") if proxied else dsn,
            ),
            name,
        )
        for name in (f"relay-{number}" for number in range(replicas))
    ]
    await daemons[0].migrate()
    async with Books(dsn) as books:
        await books.create()
    for daemon in daemons:
        await daemon.start()
    await daemons[0].until_running()
    return daemons


async def _require_all_relayed(stack: ChaosStack, ledger: Ledger, daemons: Sequence[Daemon], told: str) -> None:
    async def describe() -> str:
        return "; ".join([await daemon.describe() for daemon in daemons])

    async with Books(stack.dsn("shop")) as books:

        async def nothing_is_pending() -> bool:
            return not await books.pending()

        try:
            await until(nothing_is_pending, within=FINISH, what="the outbox is empty", but=describe)
        except NotSeen as late:
            told = f"{told}\n{late}"  # the report names the rows
        # Late copies of what was frozen on its way would come now.
        await asyncio.sleep(1)
        report = check_relay(
            written=await books.written(),
            records=await read_topic(stack.bootstrap_servers, TOPIC),
            pending=await books.pending(),
            ledger=ledger,
        )
    print(told, report, sep="\n")
    assert report.holds, f"{told}\n{report}"
    assert report.counts["rows committed"] > 100, ledger.last_error


@pytest.mark.timeout(420)
async def test_three_relays_lose_and_repeat_nothing_while_everything_is_killed(
    stack: ChaosStack, make_daemon: MakeDaemon, scale: Scale, seed: int
) -> None:
    daemons = await _begun(stack, make_daemon, replicas=3, proxied=False)
    # Daemons and servers are struck side by side: a take-over while the broker is away, a freeze over a restart.
    of_daemons = Schedule(
        seed=f"{seed}, daemons",
        faults=[
            *(kill(daemon, weight=4) for daemon in daemons),
            *(freeze(daemon, weight=2) for daemon in daemons),
            *(terminate(daemon, weight=2) for daemon in daemons),
        ],
        pause=(1, 3),
    )
    of_servers = Schedule(
        seed=f"{seed}, servers",
        faults=[
            kill(stack.kafka),
            freeze(stack.kafka, lasts=(1, 5)),
            kill(stack.postgres),
            freeze(stack.postgres, lasts=(1, 8)),
        ],
        pause=(2, 5),
    )
    lasting = timedelta(seconds=scale.of(short=8, long=120))
    async with Writers(dsn=stack.dsn("shop"), topic=TOPIC, seed=seed) as writers, asyncio.TaskGroup() as storm:
        storm.create_task(of_daemons.run(lasting=lasting), name="chaos: daemons")
        storm.create_task(of_servers.run(lasting=lasting), name="chaos: servers")
    await _require_all_relayed(stack, writers.ledger, daemons, f"{of_daemons}\n{of_servers}")


@pytest.mark.long
@pytest.mark.timeout(420)
async def test_answers_that_are_lost_on_the_way_back_repeat_nothing(
    stack: ChaosStack, make_daemon: MakeDaemon, seed: int
) -> None:
    daemons = await _begun(stack, make_daemon, replicas=2, proxied=True)
    schedule = Schedule(
        seed=seed,
        faults=[
            lost_answers(stack.kafka_proxy, weight=3),
            lost_answers(stack.postgres_proxy, weight=3),
            cut(stack.kafka_proxy),
            cut(stack.kafka_proxy, after=700, weight=2),
            cut(stack.postgres_proxy, after=700, weight=2),
            blackhole(stack.postgres_proxy, lasts=(1, 7)),
            blackhole(stack.kafka_proxy, lasts=(1, 14)),
            kill(daemons[0]),
        ],
        pause=(0.5, 2),
    )
    async with Writers(dsn=stack.dsn("shop"), topic=TOPIC, seed=seed) as writers:
        await schedule.run(lasting=timedelta(seconds=120))
    await _require_all_relayed(stack, writers.ledger, daemons, str(schedule))

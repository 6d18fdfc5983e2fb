"""The consumer under faults: every record is handled or safely in a letter, and no offset says so too early."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outboxd.errors import DatabaseError, DevServerFailed
from outboxd.testing.chaos import (
    Books,
    ChaosStack,
    CommitWatch,
    Daemon,
    NotSeen,
    Schedule,
    blackhole,
    check_consumer,
    cut,
    fill_topic,
    freeze,
    kill,
    lost_answers,
    read_topic,
    terminate,
    until,
)
from tests.chaos import configuration, handlers
from tests.chaos.configuration import GROUP, TOPIC
from tests.chaos.conftest import MakeDaemon, Scale

PARTITIONS = 6


class Takers:
    """Replicas of one consumer on a topic that was filled before, and what they have to show."""

    def __init__(self, stack: ChaosStack, daemons: list[Daemon], records: int) -> None:
        self.stack = stack
        self.daemons = daemons
        self.per_partition = records // PARTITIONS
        self.schedule: Schedule | None = None

    async def committed(self) -> dict[int, int]:
        return await self.stack.kafka.committed_offsets(GROUP, TOPIC, partitions=PARTITIONS)

    async def watch(self, watch: CommitWatch) -> None:
        """Judge the committed offsets once a second, whenever both servers answer."""
        while True:
            await asyncio.sleep(1)
            try:
                await watch.look(await self.committed())
            except (DevServerFailed, DatabaseError):
                continue

    async def describe(self) -> str:
        return "; ".join([await daemon.describe() for daemon in self.daemons])

    async def until_committed(self, within: timedelta) -> None:
        async def is_at_the_end() -> bool:
            try:
                offsets = await self.committed()
            except DevServerFailed:
                return False
            return len(offsets) == PARTITIONS and min(offsets.values()) >= self.per_partition

        await until(is_at_the_end, within=within, what="the group is at the end", but=self.describe)

    async def until_letters_are_home(self, books: Books, within: timedelta) -> None:
        """Those that were taken by the second sink meanwhile."""
        expected = PARTITIONS * len([number for number in range(self.per_partition) if handlers.fails(number)])

        async def are_home() -> bool:
            return len(await books.letters(TOPIC)) >= expected

        await until(are_home, within=within, what=f"{expected} letters are home", but=self.describe)


async def begun(
    stack: ChaosStack, make_daemon: MakeDaemon, *, replicas: int, records: int, is_proxied: bool = False
) -> Takers:
    """Replicas that have begun to take what is in the topic."""
    await stack.kafka.create_topic(TOPIC, partitions=PARTITIONS)
    await stack.kafka.create_topic(f"{TOPIC}.dlq", partitions=2)
    dsn = await stack.postgres.create_database("shop")
    daemons = [
        make_daemon(
            configuration.daemon(
                name,
                configuration.consumer(),
                bootstrap_servers=stack.proxied_bootstrap_servers if is_proxied else stack.bootstrap_servers,
                dsn=stack.proxied_dsn("shop") if is_proxied else dsn,
            ),
            name,
            CHAOS_DSN=stack.proxied_dsn("shop") if is_proxied else dsn,
        )
        for name in (f"taker-{number}" for number in range(replicas))
    ]
    await daemons[0].migrate()
    async with Books(dsn) as books:
        await books.create()
    await fill_topic(stack.bootstrap_servers, TOPIC, partitions=PARTITIONS, records=records)
    for daemon in daemons:
        await daemon.start()
    return Takers(stack, daemons, records)


async def _struck(takers: Takers, *schedules: Schedule, lasting: timedelta, within: timedelta) -> None:
    """Carry the schedules out side by side while the group works, let it finish, and check; what came too late is judged as well."""
    late: list[str] = []
    async with Books(takers.stack.dsn("shop")) as books:
        watch = CommitWatch(books=books, topic=TOPIC, fails=lambda _, offset: handlers.fails(offset))
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(takers.watch(watch), name="chaos: watch the committed offsets")
            async with asyncio.TaskGroup() as storm:
                for schedule in schedules:
                    storm.create_task(schedule.run(lasting=lasting), name=f"chaos: {schedule.seed}")
            try:
                await takers.until_committed(within)
                await takers.until_letters_are_home(books, timedelta(seconds=60))
            except NotSeen as error:
                late.append(str(error))
            watching.cancel()
        await watch.look(await takers.committed())
        report = watch.report() + check_consumer(
            records=await read_topic(takers.stack.bootstrap_servers, TOPIC),
            handled=await books.handled(TOPIC),
            letters=await books.letters(TOPIC),
            committed=await takers.committed(),
            fails=lambda record: handlers.fails(record.offset),
        )
    told = "\n".join([*map(str, schedules), *late, str(report)])
    print(told)
    assert report.holds, told
    assert not late, told


@pytest.mark.timeout(900)
async def test_replicas_that_are_killed_and_frozen_skip_no_record_and_write_each_letter_once(
    stack: ChaosStack, make_daemon: MakeDaemon, scale: Scale, seed: int
) -> None:
    replicas = int(scale.of(short=2, long=3))
    records = int(scale.of(short=3_000, long=200_004))
    takers = await begun(stack, make_daemon, replicas=replicas, records=records)
    of_daemons = Schedule(
        seed=f"{seed}, daemons",
        faults=[
            *(kill(daemon, weight=6) for daemon in takers.daemons),
            *(freeze(daemon, lasts=(1, 9), weight=2) for daemon in takers.daemons),
            *(terminate(daemon) for daemon in takers.daemons),
        ],
        pause=(1, 3),
    )
    of_servers = Schedule(
        seed=f"{seed}, servers",
        faults=[
            kill(stack.kafka),
            freeze(stack.kafka, lasts=(1, 5)),
            kill(stack.postgres),
            freeze(stack.postgres, lasts=(1, 5)),
        ],
        pause=(4, 12),
    )
    await _struck(
        takers,
        of_daemons,
        of_servers,
        lasting=timedelta(seconds=scale.of(short=8, long=200)),
        within=timedelta(seconds=scale.of(short=60, long=300)),
    )
    kills = [strike for strike in of_daemons.done if strike.fault.name.startswith("kill")]
    assert len(kills) >= scale.of(short=1, long=20)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_consumer_whose_answers_are_lost_skips_no_record_and_writes_each_letter_once(
    stack: ChaosStack, make_daemon: MakeDaemon, seed: int
) -> None:
    takers = await begun(stack, make_daemon, replicas=2, records=60_000, is_proxied=True)
    schedule = Schedule(
        seed=seed,
        faults=[
            lost_answers(stack.kafka_proxy, weight=3),
            lost_answers(stack.postgres_proxy, weight=3),
            cut(stack.kafka_proxy, after=700, weight=2),
            cut(stack.postgres_proxy, after=700, weight=2),
            blackhole(stack.postgres_proxy, lasts=(1, 7)),
            blackhole(stack.kafka_proxy, lasts=(1, 14)),
            kill(takers.daemons[0]),
        ],
        pause=(0.5, 2),
    )
    await _struck(takers, schedule, lasting=timedelta(seconds=100), within=timedelta(seconds=240))

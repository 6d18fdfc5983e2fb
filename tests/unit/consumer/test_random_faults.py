"""Seeds decide rebalances, crashes, refused commits, failing handlers and sinks that are away; then the invariants hold."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

import pytest

from outboxd.errors import AssignmentLost, BrokerUnreachable
from outboxd.records import Record
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import ListChain, Rig, ScriptedHandler, eventually, leftover_tasks, rule, settings_of

SEEDS = 200


class World:
    """Two replicas of one pipeline, and what may befall them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.cluster = FakeCluster(FakeClock(), topics={"orders": self.chance.choice([1, 2, 3])})
        self.chain = ListChain()
        self.is_out = False
        self.handled: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.order: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self.settings = settings_of(
            {
                "concurrency": self.chance.choice([1, 3, 16]),
                "max_pending": self.chance.choice([3, 20, 1000]),
                "rebalance_timeout": self.chance.choice(["21s", "23s"]),
                "commit_every": self.chance.choice(["50ms", "700ms"]),
            },
            errors={
                "retry": {"attempts": 3, "initial": "100ms", "jitter": "full"},
                "outage": {"failures": 5, "within": "10s", "probe_every": "500ms"},
            },
            timeout="60s",
        )
        self.rigs = [self.rig(), self.rig()]
        self.poison: set[tuple[int, int]] = set()
        self.flaky: set[tuple[int, int]] = set()

    def rig(self) -> Rig:
        rules = [rule("dead_letter", "LookupError"), rule("pause", "ConnectionError")]  # type: ignore[arg-type]
        return Rig(
            self.cluster,
            handler=ScriptedHandler(self.answer),
            settings=self.settings,
            rules=rules,
            chain=self.chain,
        )

    async def answer(self, record: Record) -> None:
        at = (record.partition, record.offset)
        if self.chance.random() < 0.7:
            await asyncio.sleep(self.chance.choice([0.001, 0.05, 0.4, 2.0]))
        if self.is_out:
            raise ConnectionError("out")
        if at in self.poison:
            raise LookupError("poison")
        if at in self.flaky:
            self.flaky.discard(at)
            raise ValueError("flaky")
        self.handled[at].append(record.attempt)
        if record.key is not None:
            self.order[record.partition, record.key].append(record.offset)

    def produce(self, count: int) -> None:
        for _ in range(count):
            partition = self.chance.randrange(len(self.cluster.logs))
            key = self.chance.choice([None, b"a", b"b", b"c", b"d", b"e"])
            offset = self.cluster.produce("orders", key, b"v", partition=partition)
            if self.chance.random() < 0.08:
                self.poison.add((partition, offset))
            elif self.chance.random() < 0.1:
                self.flaky.add((partition, offset))
            if self.chance.random() < 0.05:
                self.cluster.mark("orders", partition)

    async def something_happens(self) -> None:
        rig = self.chance.choice(self.rigs)
        match self.chance.randrange(9):
            case 0 | 1:
                self.produce(self.chance.randrange(30))
            case 2:
                await self.cluster.groups["shop"].rebalance()
            case 3:
                fault = self.chance.choice([AssignmentLost("moved"), BrokerUnreachable("gone")])
                self.cluster.commit_faults.extend([fault] * self.chance.randrange(3))
            case 4:
                self.chain.is_down = not self.chain.is_down
            case 5:
                self.is_out = not self.is_out
            case 6 if rig.task is not None:
                await rig.stop()
                await rig.start()
            case 7 if rig.task is not None:
                for member in [m for m in self.cluster.consumers if m.listener is rig.run._membership.assignment]:  # type: ignore[union-attr]
                    member.crash()
                    await rig.cancel()
                    self.cluster.groups["shop"].expire(member.member_id)
                    await rig.start()
            case _:
                await asyncio.sleep(self.chance.choice([0.01, 0.5, 3]))

    async def run(self) -> None:
        self.produce(40)
        for rig in self.rigs:
            await rig.start()
        for _ in range(15):
            await self.something_happens()
            await asyncio.sleep(self.chance.random() * 2)
            self.check_commits()
        self.is_out = self.chain.is_down = False
        self.cluster.commit_faults.clear()
        await eventually(self.is_all_committed, 600, step=0.25)
        for rig in self.rigs:
            await rig.stop()
        self.check_all()
        await asyncio.sleep(60)
        assert leftover_tasks() == []

    def is_all_committed(self) -> bool:
        return all(self.cluster.offset_of("shop", tp) == log.end for tp, log in self.cluster.logs.items())

    def outcomes(self) -> set[tuple[int, int]]:
        return set(self.handled) | {(letter.partition, letter.offset) for letter in self.chain.letters}

    def check_commits(self) -> None:
        """Invariant 4: nothing before a committed offset is without its outcome."""
        outcomes = self.outcomes()
        for tp, log in self.cluster.logs.items():
            for offset in range(self.cluster.offset_of("shop", tp) or 0):
                assert log.at(offset) is None or (tp.partition, offset) in outcomes, f"{tp}@{offset} was passed over"

    def check_all(self) -> None:
        self.check_commits()
        letters = [(letter.partition, letter.offset) for letter in self.chain.letters]
        assert len(letters) == len(set(letters)), "invariant 6: a letter was written twice"
        assert set(letters) == self.poison, "invariant 5: a letter that is not of a poison record, or none for one"
        for key, offsets in self.order.items():
            firsts = list(dict.fromkeys(offsets))
            assert firsts == sorted(firsts), f"key {key} ran out of order: {offsets}"
        for rig in self.rigs:
            assert rig.handler.overlaps == [], "two records of one key ran at once in one replica"


@pytest.mark.parametrize("block", range(10))
def test_the_invariants_hold_whatever_happens(block: int) -> None:
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):

        @virtual_time
        async def story(seed: int = seed) -> None:
            await World(seed).run()

        try:
            story()
        except BaseException as error:
            raise AssertionError(f"seed {seed}") from error

"""Whole relays under seeded faults, crashes and freezes: nothing is lost, nothing repeats, no key's order is broken."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta

import pytest

from outboxd.errors import (
    BrokerUnreachable,
    DatabaseUnreachable,
    OutboxdError,
    ProducerWedged,
    SendOutcomeUnknown,
)
from outboxd.pipeline.relay.relay import RelayRun
from outboxd.testing.fakes.clock import VirtualTimeLoop, virtual_time
from outboxd.testing.fakes.faults import Delayed, Fault, Hung, Late, Lost, Raised
from tests.unit.relay.world import RecordingAction, SqlAction, World, step

_DATABASE = {"fetch", "pending", "mark", "mark_statements", "stage", "oldest_pending", "register"}
_LEASES = {"join", "acquire", "renew", "verify", "release", "owned", "leave"}
_KEYS = 6
_ROWS = 30


class Storm:
    """Draws the faults of every call from one seed."""

    def __init__(self, chance: random.Random, rate: float) -> None:
        self.chance = chance
        self.rate = rate
        self.is_killing = False

    def choose(self, call: str) -> Fault | None:
        chance = self.chance
        if self.is_killing and call in {"release", "leave"}:
            return Raised(DatabaseUnreachable("the process is dead"))
        if chance.random() > self.rate:
            return Delayed(chance.random() * 0.02, chance.random() * 0.02)
        error = self._error(call)
        faults: list[Fault] = [
            Raised(error),
            Lost(error),
            Hung(),
            Hung(is_done=True),
            Delayed(chance.random() * 2, chance.random() * 2),
        ]
        if call in {"send", "mark", "mark_statements", "stage"}:
            faults.append(Late(chance.random() * 8, error))
        return chance.choice(faults)

    def _error(self, call: str) -> OutboxdError:
        if call in _DATABASE | _LEASES:
            return DatabaseUnreachable(f"{call} got no answer")
        if call == "send":
            return self.chance.choice([SendOutcomeUnknown("no answer"), ProducerWedged("sequence")])
        return BrokerUnreachable(f"{call} got no answer")


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, 200, 25)])
def test_no_fault_loses_repeats_or_reorders_a_row(seeds: range) -> None:
    for seed in seeds:
        try:
            virtual_time(_story)(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def _story(seed: int) -> None:
    chance = random.Random(seed)
    world = World(shards=2, topics=("orders", "plain", "ledger"), seed=seed)
    world.logger.lines = _Forgetful()
    storm = Storm(chance, rate=chance.choice([0.0, 0.05, 0.15]))
    for faults in (world.outbox.faults, world.leases.faults, world.broker.faults):
        faults.choose = storm.choose
    action = RecordingAction(lambda published: chance.random() < 0.1)
    plan = {"orders": [step(action)], "ledger": [step(SqlAction())]}
    world.outbox.refuses = lambda _: not is_over and chance.random() < 0.05
    is_over = False

    def start() -> tuple[RelayRun, asyncio.Task[None]]:
        seconds = timedelta(seconds=1)
        relay = world.relay(plan, lease=3 * seconds, send_deadline=2 * seconds, poll_max=seconds / 2)
        return relay, world.start(relay)

    running = [start() for _ in range(chance.choice([1, 2]))]
    written = asyncio.create_task(_write(world, chance), name="writers")
    until = world.clock.monotonic() + 8
    while world.clock.monotonic() < until:
        await asyncio.sleep(chance.random() * 2.5)
        world.check()
        index = chance.randrange(len(running))
        relay, task = running[index]
        match chance.choice(["kill", "stop", "freeze", "nothing"]):
            case "kill":
                storm.is_killing = True
                await world.kill(task)
                storm.is_killing = False
                running[index] = start()
            case "stop":
                relay.stop()
                _, pending = await asyncio.wait({task}, timeout=10)
                if pending:
                    await world.kill(task)
                running[index] = start()
            case "freeze":
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualTimeLoop)
                loop.jump(chance.random() * 5)
            case _:
                pass
    await written
    is_over = True
    for faults in (world.outbox.faults, world.leases.faults, world.broker.faults):
        faults.choose = lambda _: None
    action.fails = lambda _: False
    await world.until(lambda: not world.outbox.unmarked, 300, every=0.5)
    await asyncio.sleep(10)
    world.check()
    _judge(world, action)
    for _, task in running:
        await world.kill(task)


def _judge(world: World, action: RecordingAction) -> None:
    for topic in world.broker.topics:
        for key in {record.key for record in world.records(topic)}:
            assert key is not None
            numbers = [int(value or b"") for value in world.values(key, topic)]
            assert numbers == sorted(set(numbers)), f"{topic} {key!r}: {numbers}"
    assert sorted(world.published_ids()) == list(range(1, _ROWS + 1))
    assert sorted(set(world.outbox.marked)) == list(range(1, _ROWS + 1))
    for key in {published.key for published in action.calls}:
        first_done: list[int] = []
        for row_id in action.done:
            if row_id not in first_done and any(c.row_id == row_id and c.key == key for c in action.calls):
                first_done.append(row_id)
        assert first_done == sorted(first_done), f"actions of {key!r}: {first_done}"
    statements = [statement.arguments[0] for statement in world.outbox.statements]
    ledger = sorted(int(value) for record in world.records("ledger") if (value := record.value) is not None)
    assert sorted(int(str(row_id)) for row_id in statements) == ledger, "each statement was committed exactly once"


async def _write(world: World, chance: random.Random) -> None:
    """Rows whose value is their id; each key has one writer, so within a key ids commit in order."""
    open_rows: dict[bytes, tuple[int, str]] = {}
    for _ in range(_ROWS):
        key = b"key-%d" % chance.randrange(_KEYS)
        if key in open_rows:
            _commit(world, key, *open_rows.pop(key))
        row_id, topic = world.outbox.draw(), chance.choice(["orders", "plain", "ledger"])
        if chance.random() < 0.3:
            open_rows[key] = (row_id, topic)  # commits later, when higher ids of other keys are long done
        else:
            _commit(world, key, row_id, topic)
        await asyncio.sleep(chance.random() * 0.3)
    for key, (row_id, topic) in open_rows.items():
        _commit(world, key, row_id, topic)


def _commit(world: World, key: bytes, row_id: int, topic: str) -> None:
    world.outbox.commit(row_id, topic, key, b"%d" % row_id)


class _Forgetful(list):  # type: ignore[type-arg]
    """The last log lines, for the message of a failure."""

    def append(self, line: object) -> None:
        super().append(line)
        del self[:-60]

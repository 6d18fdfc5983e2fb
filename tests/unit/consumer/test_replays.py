"""Replay in place: a letter's record runs in its key's own lane and never touches offsets."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

import pytest

from outboxd.errors import AssignmentLost, RecordError
from outboxd.pipeline.letters.replay import ReplayPostponed
from outboxd.ports import ReplayItem
from outboxd.records import Headers, Record, Stage, TopicPartition, Verdict
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually, rule

TP = TopicPartition("orders", 0)


class Shop:
    def __init__(self) -> None:
        self.error: Exception | None = ValueError("bad")

    async def __call__(self, record: Record) -> None:
        await asyncio.sleep(1)
        if record.raw_value == b"bad" and self.error is not None:
            raise self.error


async def with_a_letter(shop: Shop) -> tuple[Rig, FakeCluster, ReplayItem]:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rules = [rule(Verdict.DEAD_LETTER, "ValueError"), rule(Verdict.PAUSE, "ConnectionError")]
    rig = Rig(cluster, handler=ScriptedHandler(shop), rules=rules)
    cluster.produce("orders", b"k", b"bad", headers=Headers([("h", None), ("h", b"2")]))
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    return rig, cluster, ReplayItem(job_id=UUID(int=1), letter=rig.chain.letters[0], attempt=1)


@virtual_time
async def test_a_replay_runs_the_same_record_behind_those_of_its_key_and_moves_no_offset() -> None:
    shop = Shop()
    rig, cluster, item = await with_a_letter(shop)
    shop.error = None
    cluster.produce("orders", b"k", b"later")
    cluster.produce("orders", b"k", b"latest")
    await asyncio.sleep(0.1)
    await rig.run.replay(item)
    assert [record.offset for record in rig.handler.done] == [1, 2, 0]
    assert rig.handler.overlaps == []
    first, again = rig.handler.calls[0], rig.handler.done[-1]
    assert replace(again, attempt=1) == replace(first, attempt=1)
    await eventually(lambda: cluster.offset_of("shop", TP) == 3)
    assert [offset for _, _, offset in cluster.commits] == sorted(offset for _, _, offset in cluster.commits)
    await rig.stop()


@virtual_time
async def test_a_replay_that_fails_again_gives_the_handlers_error_and_no_second_letter() -> None:
    shop = Shop()
    rig, _, item = await with_a_letter(shop)
    shop.error = ValueError("still bad")
    with pytest.raises(ValueError, match="still bad"):
        await rig.run.replay(item)
    assert len(rig.chain.letters) == 1
    assert len(rig.handler.calls) == 2
    await rig.stop()


@virtual_time
async def test_a_replay_in_an_outage_does_not_count() -> None:
    shop = Shop()
    rig, _, item = await with_a_letter(shop)
    shop.error = ConnectionError("refused")
    with pytest.raises(ReplayPostponed):
        await rig.run.replay(item)
    await rig.stop()


@virtual_time
async def test_a_replay_without_its_partition_does_not_count() -> None:
    rig, _, item = await with_a_letter(Shop())
    elsewhere = replace(item, letter=replace(item.letter, partition=7))
    with pytest.raises(AssignmentLost):
        await rig.run.replay(elsewhere)
    running = asyncio.create_task(rig.run.replay(item))
    await asyncio.sleep(0.5)
    await rig.cancel()
    with pytest.raises(AssignmentLost):
        await running


@virtual_time
async def test_a_letter_of_a_raw_batch_is_refused() -> None:
    rig, _, item = await with_a_letter(Shop())
    with pytest.raises(RecordError, match="fetch"):
        await rig.run.replay(replace(item, letter=replace(item.letter, stage=Stage.FETCH)))
    await rig.stop()

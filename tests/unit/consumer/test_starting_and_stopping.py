"""Where reading begins, brokers and topics that are away, and an end in bounded stages."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import pytest

from outboxd.errors import BrokerDenied, PipelineStopped
from outboxd.records import Record, TopicPartition
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.faults import Raised
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from tests.unit.consumer.rig import Rig, ScriptedHandler, eventually, leftover_tasks, settings_of

TP = TopicPartition("orders", 0)


@virtual_time
async def test_latest_is_for_the_first_sight_of_a_topic_only() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    cluster.produce("orders", b"old", b"v")
    rig = Rig(cluster, settings=settings_of({"start": "latest"}))
    await rig.start()
    await asyncio.sleep(1)
    cluster.produce("orders", b"new", b"v")
    await eventually(lambda: cluster.offset_of("shop", TP) == 2)
    assert [record.key for record in rig.handler.done] == [b"new"]
    await rig.stop()
    cluster.produce("orders", b"while away", b"v", partition=1)
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TopicPartition("orders", 1)) == 1)
    await rig.stop()


@pytest.mark.fixes("B012")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_partition_that_was_added_later_is_read_from_its_start(is_restarted: bool) -> None:
    @virtual_time
    async def story() -> None:
        cluster = FakeCluster(FakeClock(), topics={"orders": 1})
        cluster.produce("orders", b"old", b"v")
        rig = Rig(cluster, settings=settings_of({"start": "latest"}))
        await rig.start()
        await asyncio.sleep(1)
        if is_restarted:
            await rig.stop()
        cluster.create_topic("orders", 2)
        cluster.produce("orders", b"first", b"v", partition=1)
        if is_restarted:
            await rig.start()
        else:
            await cluster.groups["shop"].rebalance()
        await eventually(lambda: cluster.offset_of("shop", TopicPartition("orders", 1)) == 1)
        assert [record.key for record in rig.handler.done] == [b"first"]
        await rig.stop()

    story()


@virtual_time
async def test_a_rebalance_before_the_first_commit_does_not_move_latest() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, settings=settings_of({"start": "latest", "commit_every": "20s"}))
    await rig.start()
    cluster.committed.clear()
    cluster.produce("orders", b"k", b"v")
    await cluster.groups["shop"].rebalance()
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    assert len({record.offset for record in rig.handler.done}) == 1
    await rig.stop()


@virtual_time
async def test_the_first_position_is_committed_at_once() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.produce("orders", b"old", b"v")
    rig = Rig(cluster, settings=settings_of({"start": "latest", "commit_every": "20s"}))
    await rig.start()
    assert cluster.offset_of("shop", TP) == 1
    await rig.stop()


@virtual_time
async def test_start_fail_stops_the_pipeline_when_the_group_has_no_offset() -> None:
    rig = Rig(FakeCluster(FakeClock(), topics={"orders": 1}), settings=settings_of({"start": "fail"}))
    await rig.start()
    assert rig.task is not None
    with pytest.raises(PipelineStopped, match="start: fail"):
        await rig.task


@pytest.mark.fixes("B012")
@virtual_time
async def test_a_trimmed_offset_goes_on_at_the_logs_start_and_names_the_range() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    for index in range(10):
        cluster.produce("orders", b"%d" % index, b"v")
    cluster.committed["shop", TP] = (3, "")
    cluster.trim(TP, 7)
    rig = Rig(cluster)
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 10)
    assert rig.handler.offsets() == [7, 8, 9]
    (lost,) = rig.log.fields_of("offset_out_of_range")
    assert (lost["wanted"], lost["first"]) == (3, 7)
    await rig.stop()


@virtual_time
async def test_a_trimmed_offset_stops_the_pipeline_with_start_fail() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    for index in range(10):
        cluster.produce("orders", b"%d" % index, b"v")
    cluster.committed["shop", TP] = (3, "")
    cluster.trim(TP, 7)
    rig = Rig(cluster, settings=settings_of({"start": "fail"}))
    await rig.start()
    assert rig.task is not None
    with pytest.raises(PipelineStopped, match="offset 3"):
        await rig.task
    assert cluster.offset_of("shop", TP) == 3


@virtual_time
async def test_a_topic_that_was_made_anew_is_read_and_committed_from_its_start() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    for index in range(5):
        cluster.produce("orders", b"%d" % index, b"v")
    rig = Rig(cluster)
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 5)
    cluster.recreate_topic("orders")
    cluster.produce("orders", b"new", b"v")
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    assert rig.handler.done[-1].key == b"new"
    await rig.stop()


@virtual_time
async def test_a_broker_that_is_away_at_the_start_is_waited_for_visibly() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.is_down = True
    cluster.produce("orders", b"k", b"v")
    rig = Rig(cluster)
    await rig.start()
    await asyncio.sleep(60)
    health = rig.run.health()
    assert health.stall is not None
    assert (health.stall.reason, health.is_ready) == ("broker_unreachable", False)
    cluster.is_down = False
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    assert rig.run.health().stall is None
    await rig.stop()
    assert leftover_tasks() == []


@virtual_time
async def test_a_topic_that_does_not_exist_is_waited_for_visibly() -> None:
    cluster = FakeCluster(FakeClock(), topics={"other": 1})
    rig = Rig(cluster)
    await rig.start()
    await asyncio.sleep(5)
    assert rig.stall() == "topic_failed"
    cluster.create_topic("orders", 1)
    cluster.produce("orders", b"k", b"v")
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    await rig.stop()


@virtual_time
async def test_a_broker_that_denies_the_client_fails_the_pipeline() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.faults.plan("connect", Raised(BrokerDenied("wrong password")))
    rig = Rig(cluster)
    await rig.start()
    assert rig.task is not None
    with pytest.raises(BrokerDenied):
        await rig.task
    assert rig.handler.closed == 1


@virtual_time
async def test_an_outage_of_the_broker_in_the_middle_shows_and_passes() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster)
    await rig.start()
    cluster.is_down = True
    await asyncio.sleep(60)
    assert rig.stall() == "broker_unreachable"
    cluster.is_down = False
    cluster.produce("orders", b"k", b"v")
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    await eventually(lambda: rig.stall() is None)
    assert len(cluster.consumers) == 1
    await rig.stop()


@pytest.mark.fixes("B007")
@virtual_time
async def test_a_stop_without_brokers_ends_within_its_budget() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(3600)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer))
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    cluster.is_down = True
    rig.member.stop = lambda: asyncio.sleep(3600)
    began = asyncio.get_running_loop().time()
    await rig.stop()
    assert asyncio.get_running_loop().time() - began <= 25
    assert rig.handler.closed == 1


@pytest.mark.fixes("B059")
@virtual_time
async def test_a_stop_in_the_middle_of_a_handler_lets_it_finish_and_commits() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(10)

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer))
    cluster.produce("orders", b"k", b"v")
    cluster.produce("orders", b"k", b"v")
    await rig.start()
    await rig.stop()
    assert rig.handler.offsets() == [0]
    assert cluster.offset_of("shop", TP) == 1


@pytest.mark.parametrize("seconds", [1, 7, 25])
def test_at_least_half_of_any_drain_timeout_is_the_handlers(seconds: int) -> None:
    @virtual_time
    async def story() -> None:
        async def answer(record: Record) -> None:
            await asyncio.sleep(0.45 * seconds)

        cluster = FakeCluster(FakeClock(), topics={"orders": 1})
        rig = Rig(cluster, handler=ScriptedHandler(answer), drain_timeout=timedelta(seconds=seconds))
        cluster.produce("orders", b"k", b"v")
        await rig.start()
        await rig.stop()
        assert rig.handler.offsets() == [0]
        assert cluster.offset_of("shop", TP) == 1

    story()


@virtual_time
async def test_a_stop_leaves_retries_and_pending_letters_to_the_next_start() -> None:
    async def answer(record: Record) -> None:
        if record.key == b"bad":
            raise ValueError("no")

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer), settings=settings_of(errors={"retry": {"initial": "30s"}}))
    cluster.produce("orders", b"bad", b"v")
    cluster.produce("orders", b"good", b"v")
    await rig.start()
    began = asyncio.get_running_loop().time()
    await rig.stop()
    assert asyncio.get_running_loop().time() - began < 1
    assert cluster.offset_of("shop", TP) == 0


@virtual_time
async def test_a_cancelled_run_ends_within_a_second_and_leaves_no_task() -> None:
    async def answer(record: Record) -> None:
        await asyncio.sleep(3600)

    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    rig = Rig(cluster, handler=ScriptedHandler(answer))
    for index in range(10):
        cluster.produce("orders", b"%d" % index, b"v", partition=index % 2)
    await rig.start()
    began = asyncio.get_running_loop().time()
    await rig.cancel()
    assert asyncio.get_running_loop().time() - began <= 1
    assert leftover_tasks() == []


@virtual_time
async def test_a_stop_while_joining_ends_the_run() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.is_down = True
    rig = Rig(cluster)
    await rig.start()
    began = asyncio.get_running_loop().time()
    await rig.stop()
    assert asyncio.get_running_loop().time() - began <= 6
    assert leftover_tasks() == []


@pytest.mark.fixes("B005")
@virtual_time
async def test_a_client_that_has_records_and_does_not_move_is_replaced() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster)
    await rig.start()
    rig.member.is_frozen = True
    cluster.produce("orders", b"k", b"v")
    await eventually(lambda: cluster.offset_of("shop", TP) == 1, 200)
    assert len(cluster.consumers) == 2
    assert cluster.consumers[0].is_stopped
    await asyncio.sleep(600)
    assert len(cluster.consumers) == 2
    await rig.stop()


@virtual_time
async def test_health_tells_what_is_in_hand_and_how_far_it_is() -> None:
    hold = asyncio.Event()

    async def answer(record: Record) -> None:
        await hold.wait()

    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    rig = Rig(cluster, handler=ScriptedHandler(answer))
    for index in range(5):
        cluster.produce("orders", b"%d" % (index % 3), b"v")
    await rig.start()
    await asyncio.sleep(6)
    health = rig.run.health()
    assert health.is_ready
    detail: Mapping[str, object] = health.detail
    assert {name: detail[name] for name in ("assigned", "pending", "in_flight", "retrying", "committed", "lag")} == {
        "assigned": ["orders-0"],
        "pending": 5,
        "in_flight": 3,
        "retrying": 0,
        "committed": {"orders-0": 0},
        "lag": {"orders-0": 5},
    }
    hold.set()
    await rig.stop()


class _LateHandler(ScriptedHandler):
    """Knows what to call only once it is open, as one that imports its function then."""

    async def open(self) -> None:
        await super().open()
        self.handle = self._late  # type: ignore[method-assign,assignment]

    async def _late(self, record: Record, context: object) -> None:
        self.done.append(record)

    def handle(self, record: Record, context: object) -> None:  # type: ignore[override]
        raise AssertionError("not open")


@virtual_time
async def test_a_handler_is_what_its_open_made_of_it() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.produce("orders", b"k", b"v")
    rig = Rig(cluster, handler=_LateHandler())
    await rig.start()
    await eventually(lambda: cluster.offset_of("shop", TP) == 1)
    assert [record.key for record in rig.handler.done] == [b"k"]
    assert rig.chain.letters == []
    await rig.stop()

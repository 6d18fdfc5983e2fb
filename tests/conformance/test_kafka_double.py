"""What no suite of a port can show: what becomes of single requests to the brokers in memory, and of their answers."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar, copy_context
from datetime import timedelta

import pytest

from outboxd.errors import BrokerDenied, BrokerUnreachable, ProducerFenced, RecordRejected, TopicDenied
from outboxd.ports import OutboundRecord
from outboxd.records import NO_HEADERS, TopicPartition
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.faults import Delayed, Hung, Late, Lost, Raised
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from outboxd.testing.fakes.kafka.group import GroupState
from outboxd.testing.fakes.kafka.producer import FakeProducer
from outboxd.testing.fakes.kafka.requests import Disconnected, GroupRefusal, Why
from tests.conformance.kafka_world import Member, rows

FIRST = TopicPartition("orders", 0)
BROKEN = Disconnected("the connection broke")


async def a_producer(cluster: FakeCluster, identity: str = "x", *, deadline: float = 10) -> FakeProducer:
    producer = cluster.relay_producer(identity, compression=None, deadline=timedelta(seconds=deadline))
    await producer.open([])
    return producer


def values(cluster: FakeCluster) -> list[bytes | None]:
    return [record.value for record in cluster.records("orders")]


# -- producers


@pytest.mark.parametrize("fault", [Raised(BROKEN), Lost(BROKEN), Hung(), Hung(is_done=True), Delayed(3, 4)])
def test_a_batch_is_handed_over_until_it_is_acknowledged_and_written_once(fault: object) -> None:
    @virtual_time
    async def story() -> None:
        cluster = FakeCluster(FakeClock(), topics={"orders": 1})
        producer = await a_producer(cluster, deadline=100)
        cluster.faults.plan("send", None, fault, fault, fault)  # type: ignore[arg-type]
        for number in range(3):
            assert await producer.send(FIRST, producer.build(rows(b"%d" % number))) == number
        assert values(cluster) == [b"0", b"1", b"2"]
        await producer.abandon()

    story()


@virtual_time
async def test_an_answer_to_the_opening_that_is_lost_costs_an_epoch_and_nothing_else() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    older = await a_producer(cluster)
    for call in ("init_producer_id", "add_partitions", "end_transaction"):
        cluster.faults.plan(call, Lost(BROKEN))
    newer = cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
    assert await newer.open([FIRST]) == frozenset()
    assert newer.epoch > older.epoch
    with pytest.raises(ProducerFenced):
        await older.send(FIRST, older.build(rows(b"stale")))
    assert cluster.stale_refused == 1
    await newer.send(FIRST, newer.build(rows(b"new")))


@virtual_time
async def test_an_opening_that_is_overtaken_is_fenced() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    slow = cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
    cluster.faults.plan("add_partitions", Delayed(before=5))
    opening = asyncio.create_task(slow.open([FIRST]))
    await asyncio.sleep(1)
    await a_producer(cluster)
    with pytest.raises(ProducerFenced):
        await opening


@virtual_time
async def test_the_transaction_of_an_owner_that_died_in_its_opening_is_ended_by_the_next_one() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    dead = cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
    cluster.faults.plan("end_transaction", Hung())
    opening = asyncio.create_task(dead.open([FIRST]))
    await asyncio.sleep(1)
    opening.cancel()
    await asyncio.wait({opening})
    assert cluster.end(FIRST) == 0
    heir = await a_producer(cluster)
    assert cluster.end(FIRST) == 1, "its marker"
    assert await heir.send(FIRST, heir.build(rows(b"v"))) == 1


@virtual_time
async def test_what_has_left_may_arrive_after_the_producer_was_given_up_and_is_refused_after_a_fence() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    second = TopicPartition("orders", 1)
    producer = await a_producer(cluster)
    for partition in (FIRST, second):
        cluster.faults.plan("send", Late(20, BROKEN), Hung())
        sending = asyncio.create_task(producer.send(partition, producer.build(rows(b"late"))))
        await asyncio.sleep(1)
        assert not sending.done()
        sending.cancel()
    await producer.abandon()
    heir = cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
    await heir.open([FIRST])
    await asyncio.sleep(30)
    assert values(cluster) == [b"late"], "where nobody has fenced"
    assert cluster.log("orders", 1)
    assert cluster.stale_refused == 1


@virtual_time
async def test_a_repeat_is_known_among_the_last_five_batches_only_and_whole() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    producer_id, epoch = cluster.transactions.init_producer_id("x")
    for sequence in range(6):
        assert cluster.append(producer_id, epoch, FIRST, sequence, rows(b"v")) == sequence
    assert cluster.append(producer_id, epoch, FIRST, 1, rows(b"v")) == 1
    for sequence, batch in ((0, rows(b"v")), (5, rows(b"v", b"w")), (7, rows(b"v"))):
        with pytest.raises(Exception, match="sequence"):
            cluster.append(producer_id, epoch, FIRST, sequence, batch)
    assert cluster.end(FIRST) == 6
    with pytest.raises(Exception, match="a new epoch"):
        cluster.append(producer_id, epoch + 1, FIRST, 6, rows(b"v"))
    assert cluster.append(producer_id, epoch + 1, FIRST, 0, rows(b"v")) == 6
    assert cluster.append(producer_id + 1, 0, FIRST, 17, rows(b"v")) == 7, (
        "an id that is not known here begins anywhere"
    )


@virtual_time
async def test_a_transactional_id_that_expired_fences_nobody() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    older = await a_producer(cluster)
    cluster.transactions.expire("x")
    newer = cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
    await newer.open([FIRST])
    await older.send(FIRST, older.build(rows(b"stale, and in")))
    assert values(cluster) == [b"stale, and in"]


@virtual_time
async def test_an_epoch_that_is_used_up_gives_way_to_a_new_producer_id() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    taken = [cluster.transactions.init_producer_id("x") for _ in range(32_768)]
    assert taken[0] == (1, 0)
    assert taken[-2:] == [(1, 32_766), (2, 0)]


@virtual_time
async def test_a_topic_that_is_denied_takes_nothing_and_cannot_be_fenced() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    producer = await a_producer(cluster)
    await producer.send(FIRST, producer.build(rows(b"0")))
    cluster.deny("orders")
    with pytest.raises(TopicDenied):
        await producer.send(FIRST, producer.build(rows(b"1")))
    with pytest.raises(TopicDenied):
        await cluster.admin().topic("orders")
    other = cluster.relay_producer("x", compression=None, deadline=timedelta(seconds=10))
    assert await other.open([FIRST]) == {FIRST}
    cluster.deny("orders", is_denied=False)
    assert values(cluster) == [b"0"]


@virtual_time
async def test_a_value_can_be_refused_whatever_its_size() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.rejects.add(b"poison")
    sender = cluster.sender(deadline=timedelta(seconds=5))
    with pytest.raises(RecordRejected):
        await sender.send("orders", key=None, value=b"poison", headers=NO_HEADERS)
    cluster.rejects.clear()
    await sender.send("orders", key=None, value=b"poison", headers=NO_HEADERS)
    await sender.close()


# -- questions


@virtual_time
async def test_a_question_is_asked_again_until_its_deadline_and_other_errors_are_its_answer() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    admin = cluster.admin()
    cluster.faults.plan("end_offsets", Raised(BROKEN), Lost(BROKEN), None, Raised(BrokerUnreachable("final")))
    assert await admin.end_offsets("orders") == {FIRST: 0}
    with pytest.raises(BrokerUnreachable, match="final"):
        await admin.end_offsets("orders")
    cluster.faults.choose = lambda _: Raised(BROKEN)
    began = asyncio.get_running_loop().time()
    with pytest.raises(BrokerUnreachable, match="no answer within 10 s"):
        await admin.end_offsets("orders")
    assert asyncio.get_running_loop().time() - began == pytest.approx(10)
    assert cluster.faults.calls.count("end_offsets") < 40, "at a pace that hurts nobody"


# -- groups


async def a_member(cluster: FakeCluster, **options: float) -> Member:
    member = Member(cluster, ["orders"], "shop", **options)  # type: ignore[arg-type]
    await member.join()
    return member


@virtual_time
async def test_requests_of_a_member_that_get_lost_cost_time_and_nothing_else() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    for call in (
        "join_group",
        "join_group_answer",
        "sync_group",
        "sync_group_answer",
        "committed",
        "fetch",
        "heartbeat",
    ):
        cluster.faults.plan(call, Raised(BROKEN), Lost(BROKEN), Raised(BROKEN))
    cluster.produce("orders", b"k", b"v")
    member = await a_member(cluster)
    await member.until_seen(1)
    cluster.faults.plan("commit", Lost(BROKEN), Raised(BROKEN))
    await member.commit()
    assert cluster.commits == [("shop", FIRST, 1)] * 2
    await asyncio.sleep(30)
    assert len(cluster.groups["shop"].members) == 1
    assert member.told[-1] == ("assigned", [FIRST])
    await member.end()
    assert cluster.groups["shop"].state is GroupState.EMPTY


@virtual_time
async def test_a_member_without_a_word_for_its_session_is_put_out_although_nothing_of_it_runs() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    member = await a_member(cluster, session=6)
    cluster.faults.choose = lambda _: Hung()  # cut off: its requests never arrive
    await asyncio.sleep(6.5)
    assert cluster.groups["shop"].members == {}
    assert cluster.groups["shop"].state is GroupState.EMPTY
    assert member.owned == [FIRST], "and does not know it"
    cluster.faults.choose = lambda _: None
    await asyncio.sleep(60)
    assert member.told[2:] == [("revoked", [FIRST]), ("assigned", [FIRST])]
    await member.end()


@virtual_time
async def test_no_session_ends_while_there_is_no_broker_and_all_begin_anew_with_it() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    member = await a_member(cluster, session=6)
    cluster.is_down = True
    await asyncio.sleep(60)
    cluster.is_down = False
    [known] = cluster.groups["shop"].members.values()
    assert known.until == asyncio.get_running_loop().time() + 6
    await asyncio.sleep(10)
    assert len(member.told) == 2, "it is still the same assignment"
    await member.end()


@virtual_time
async def test_an_empty_group_takes_the_last_commit_of_a_member_that_it_forgot() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    member = await a_member(cluster)

    async def drain() -> None:
        await member.port.commit({FIRST: (1, "")})

    member.drain = drain
    cluster.groups["shop"].expire(cluster.consumers[0].member_id)
    await asyncio.sleep(5)
    assert cluster.commits == [("shop", FIRST, 1)]
    await member.end()


@virtual_time
async def test_what_the_coordinator_takes_from_whom() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    member = await a_member(cluster)
    group = cluster.groups["shop"]
    member_id = cluster.consumers[0].member_id
    cases = [
        (member_id, group.generation - 1, Why.ILLEGAL_GENERATION),
        ("stranger", group.generation, Why.UNKNOWN_MEMBER),
    ]
    for someone, generation, why in [*cases, ("", -1, Why.UNKNOWN_MEMBER)]:
        with pytest.raises(GroupRefusal) as refused:
            cluster.coordinator.commit("shop", someone, generation, {FIRST: (1, "")})
        assert refused.value.why is why
    assert cluster.commits == []
    group.state = GroupState.COMPLETING
    with pytest.raises(GroupRefusal) as refused:
        cluster.coordinator.commit("shop", member_id, group.generation, {FIRST: (1, "")})
    assert refused.value.why is Why.REBALANCE_IN_PROGRESS
    group.state = GroupState.STABLE
    await member.end()


@virtual_time
async def test_a_group_that_denies_its_members_tells_them() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 1})
    cluster.coordinator.group("shop").is_denied = True
    member = Member(cluster, ["orders"], "shop")
    await member.start()
    await asyncio.sleep(5)
    assert {type(error) for error in member.refusals} == {BrokerDenied}
    await member.end()


@virtual_time
async def test_a_first_join_whose_answer_was_lost_holds_the_others_up_until_its_time_is_over() -> None:
    cluster = FakeCluster(FakeClock(), topics={"orders": 2})
    first = await a_member(cluster, session=10, rebalance=60)
    cluster.faults.plan("join_group", Late(0, BROKEN))
    second = Member(cluster, ["orders"], "shop", session=10, rebalance=60)
    await second.start()
    await asyncio.sleep(8)
    assert first.owned == second.owned == []
    await asyncio.sleep(4)
    assert len(first.owned) == len(second.owned) == 1
    await first.end()
    await second.end()


@virtual_time
async def test_the_servers_timers_run_in_the_servers_context() -> None:
    place = ContextVar("place", default="server")
    seen: list[str] = []
    cluster = FakeCluster(FakeClock(), topics={"orders": 1}, context=copy_context())

    def partitions_of(topic: str) -> list[TopicPartition]:
        seen.append(place.get())
        return [FIRST]

    async def client() -> None:
        place.set("client")
        members = [await a_member(cluster, session=6, rebalance=3), await a_member(cluster, session=6, rebalance=3)]
        for member in members:
            member.forget()
        cluster.faults.choose = lambda _: Hung()
        cluster.partitions_of = partitions_of  # type: ignore[method-assign]
        cluster.call_later(1, cluster.partitions_of, "orders")
        for consumer in cluster.consumers:
            consumer.crash()

    await asyncio.create_task(client())
    await asyncio.sleep(20)
    assert cluster.groups["shop"].members == {}
    assert seen == ["server"]


def test_two_runs_are_the_same_to_the_last_call() -> None:
    @virtual_time
    async def story() -> list[str]:
        cluster = FakeCluster(FakeClock(), topics={"orders": 4})
        members = [await a_member(cluster, session=6) for _ in range(3)]
        sender = cluster.sender(deadline=timedelta(seconds=5))
        record = OutboundRecord(key=None, value=b"v", headers=NO_HEADERS)
        for _ in range(20):
            await sender.send("orders", key=record.key, value=record.value, headers=record.headers)
            for member in members:
                await member.step()
        for member in members:
            await member.end()
        await sender.close()
        return [*cluster.faults.calls, *map(str, (member.told for member in members))]

    assert story() == story()

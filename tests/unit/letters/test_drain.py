from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outboxd.errors import DatabaseUnreachable, SinkUnavailable, StatementFailed
from outboxd.pipeline.letters.chain import Chain, ChainLink
from outboxd.pipeline.letters.drain import DrainJob, DrainPace, drain_jobs
from outboxd.records import Letter, LetterStatus
from outboxd.telemetry import letters as events
from outboxd.testing.fakes.clock import FakeClock, SeededRandom, VirtualTimeLoop, virtual_time
from outboxd.testing.fakes.faults import Delayed, Fault, Hung, Lost, Raised
from outboxd.testing.fakes.lease import FakeLeases
from outboxd.testing.fakes.letters import FakeLetters
from outboxd.testing.fakes.sinks import FakeReadableSink, FakeSink
from tests.unit.letters.doubles import Recorder, a_letter

AWAY = DatabaseUnreachable("the home is away")


class Scene:
    """A chain of a topic and a home, with the home's database, that survives the processes which drain it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.leases = FakeLeases(self.clock)
        self.home = FakeLetters(self.clock, SeededRandom(1), self.leases)
        self.topic = FakeReadableSink()
        self.telemetry = Recorder()
        self.starts = 0

    def chain(self) -> Chain:
        links = [
            ChainLink(name="topic", type="kafka", sink=self.topic, deadline=timedelta(seconds=5)),
            ChainLink(name="home", type="postgres", sink=FakeSink(), deadline=timedelta(seconds=5)),
        ]
        return Chain(pipeline="orders", links=links, clock=self.clock, telemetry=self.telemetry)

    def job(self, chain: Chain | None = None) -> DrainJob:
        self.starts += 1
        [job] = drain_jobs(
            chain or self.chain(),
            pipeline="orders",
            leases=self.leases,
            store=self.home,
            owner=f"daemon-{self.starts}",
            instance="pod-0",
            clock=self.clock,
            random=SeededRandom(self.starts),
            telemetry=self.telemetry,
            pace=DrainPace(batch=3),
        )
        return job

    def drained(self) -> Sequence[int]:
        return [letter.offset for letter in self.home.letters]


async def settled(job: DrainJob, seconds: float = 30.0) -> None:
    running = asyncio.create_task(job.run())
    await asyncio.sleep(seconds)
    job.stop()
    await running


@virtual_time
async def test_letters_of_the_topic_are_home_once_each_oldest_first() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(offset) for offset in (2, 0, 1, 3, 4)]
    await settled(scene.job())
    assert scene.drained() == [0, 1, 2, 3, 4]
    view = await scene.home.get(a_letter(3).id)
    assert (view.letter, view.sink, view.status) == (a_letter(3), "topic", LetterStatus.NEW)


@virtual_time
async def test_what_is_home_already_stays_as_it_is() -> None:
    scene = Scene()
    await scene.home.store([a_letter(1)], sink="home")
    await scene.home.move([a_letter(1).id], LetterStatus.DISCARDED, actor="me", reason=None)
    scene.topic.letters += [a_letter(1)]
    await settled(scene.job())
    assert scene.home.status(a_letter(1).id) is LetterStatus.DISCARDED
    assert len(scene.home.history) == 2


@virtual_time
async def test_a_letter_that_retention_has_dropped_does_not_come_back() -> None:
    scene = Scene()
    await scene.home.store([a_letter(1)], sink="home")
    scene.home.drop(a_letter(1).id)
    scene.topic.letters += [a_letter(1), a_letter(2)]
    await settled(scene.job())
    assert scene.drained() == [2]


@virtual_time
async def test_letters_of_other_pipelines_are_passed_over_and_counted() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(0, pipeline="other"), a_letter(1), a_letter(2, pipeline="other")]
    await settled(scene.job())
    assert scene.drained() == [1]
    assert sum(event.foreign for event in scene.telemetry.of(events.LettersDrained)) == 2  # type: ignore[attr-defined]


@virtual_time
async def test_a_topic_of_foreign_letters_only_does_not_hold_up_what_is_behind() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(offset, pipeline="other") for offset in range(20)] + [a_letter(20)]
    await settled(scene.job())
    assert scene.drained() == [20]


@virtual_time
async def test_a_position_that_moves_past_records_that_are_no_letters_is_noted() -> None:
    scene = Scene()

    class Topic(FakeReadableSink):
        async def read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
            # Ten foreign records, then a letter.
            return ([a_letter(1)], "11") if position == "10" else ([], "10" if position is None else position)

    scene.topic = Topic()
    await settled(scene.job())
    assert scene.drained() == [1]
    assert scene.leases.notes("drain:orders:topic") == {"position": "11"}


@virtual_time
async def test_a_letter_that_the_chain_wrote_is_home_at_once() -> None:
    scene = Scene()
    chain = scene.chain()
    job = scene.job(chain)
    await chain.open()
    running = asyncio.create_task(job.run())
    await asyncio.sleep(10.25)
    await chain.write([a_letter(1)])
    await asyncio.sleep(0.001)
    assert scene.drained() == [1]
    job.stop()
    await running


@virtual_time
async def test_the_drain_waits_while_the_home_is_away_and_goes_on_by_itself() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(offset) for offset in range(5)]
    scene.home.faults.choose = scene.leases.faults.choose = lambda _: Raised(AWAY)
    job = scene.job()
    running = asyncio.create_task(job.run())
    await asyncio.sleep(600.0)
    assert job.status()["reason"] == "the home is away"
    assert 30 < len(scene.telemetry.of(events.DrainFailed)) < 130, "neither asleep nor hot"
    scene.home.faults.choose = scene.leases.faults.choose = lambda _: None
    await asyncio.sleep(30.0)
    assert scene.drained() == [0, 1, 2, 3, 4]
    job.stop()
    await running
    assert job.status()["reason"] is None


@virtual_time
async def test_the_drain_waits_while_the_topic_is_away() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(1)]
    scene.topic.faults.plan("read", Raised(SinkUnavailable("no broker")), Hung(), None)
    await settled(scene.job(), 120.0)
    assert scene.drained() == [1]


@virtual_time
async def test_a_letter_that_the_home_refuses_holds_up_only_what_is_behind_it() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(offset) for offset in range(6)]
    carry = scene.home.drain

    async def drain(letters: Sequence[object], **arguments: object) -> int:
        if any(letter.offset == 4 for letter in letters):  # type: ignore[attr-defined]
            raise StatementFailed("value too large", sqlstate="54000")
        return await carry(letters, **arguments)  # type: ignore[arg-type]

    scene.home.drain = drain  # type: ignore[method-assign]
    job = scene.job()
    await settled(job, 120.0)
    assert scene.drained() == [0, 1, 2, 3]
    assert job.status()["reason"] == "value too large"


@virtual_time
async def test_one_replica_drains_at_a_time_and_the_next_takes_over() -> None:
    scene = Scene()
    first, second = scene.job(), scene.job()
    one, two = asyncio.create_task(first.run()), asyncio.create_task(second.run())
    await asyncio.sleep(20.0)
    assert (first.status()["is_owner"], second.status()["is_owner"]) == (True, False)
    first.stop()
    await one
    await asyncio.sleep(6.0)
    assert second.status()["is_owner"]
    assert scene.topic.faults.calls.count("read") > 10
    second.stop()
    await two


@virtual_time
async def test_a_drain_that_lost_its_lease_writes_nothing_more() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(1)]
    scene.topic.faults.plan("read", Delayed(after=3.0))
    job = scene.job()
    running = asyncio.create_task(job.run())
    await asyncio.sleep(1.0)
    name = "drain:orders:topic"
    scene.leases.steal(name, "another", timedelta(seconds=20))
    await asyncio.sleep(5.0)
    assert scene.drained() == []
    await asyncio.sleep(60.0)
    assert scene.drained() == [1], "the other never came back: it is ours again"
    job.stop()
    await running


@virtual_time
async def test_a_clean_stop_leaves_the_position_and_the_lease_free() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(1)]
    await settled(scene.job())
    assert scene.leases.notes("drain:orders:topic") == {"position": "1"}
    assert await scene.leases.owned("drain:") == {}
    assert scene.topic.released == "1"


@virtual_time
async def test_room_is_given_back_only_for_what_is_home() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(1)]
    scene.home.faults.choose = lambda _: Lost(AWAY)  # committed, and the answer lost
    job = scene.job()
    running = asyncio.create_task(job.run())
    await asyncio.sleep(20.0)
    assert scene.topic.released is None
    job.stop()
    await running
    # Whether it was committed nobody knew: the lease runs out, with the notes that the database has.
    assert await scene.leases.owned("drain:") != {}
    assert scene.leases.notes("drain:orders:topic") == {"position": "1"}


@virtual_time
async def test_the_rate_is_bounded() -> None:
    scene = Scene()
    scene.topic.letters += [a_letter(offset) for offset in range(1000)]
    [job] = drain_jobs(
        scene.chain(), pipeline="orders", leases=scene.leases, store=scene.home, owner="d", instance="pod-0",
        clock=scene.clock, random=SeededRandom(), telemetry=scene.telemetry, pace=DrainPace(batch=10, per_second=10.0),
    )  # fmt: skip
    await settled(job, 30.5)
    assert 290 <= len(scene.drained()) <= 320


def test_what_is_drained_follows_from_the_chain() -> None:
    async def story() -> None:
        clock, telemetry = FakeClock(), Recorder()

        class Spool(FakeReadableSink):
            is_local = True

        def names(*links: ChainLink) -> list[object]:
            chain = Chain(pipeline="p", links=links, clock=clock, telemetry=telemetry)
            leases = FakeLeases(clock)
            jobs = drain_jobs(
                chain, pipeline="p", leases=leases, store=FakeLetters(clock, SeededRandom()), owner="o",
                instance="pod-0", clock=clock, random=SeededRandom(), telemetry=telemetry,
            )  # fmt: skip
            return [job._lease_name for job in jobs]

        def link(name: str, kind: str, sink: FakeSink, *, is_drained: bool = True) -> ChainLink:
            return ChainLink(name=name, type=kind, sink=sink, deadline=timedelta(seconds=1), is_drained=is_drained)

        home, topic, spool = (
            link("postgres", "postgres", FakeSink()),
            link("kafka", "kafka", FakeReadableSink()),
            link("spool", "spool", Spool()),
        )
        assert names(topic, spool) == [], "without a home there is nowhere to carry to"
        assert names(home, topic, spool) == ["drain:p:kafka", "drain:p:spool:pod-0"]
        assert names(topic, home) == ["drain:p:kafka"], "also where the topic stands first"
        assert names(home, link("kafka", "kafka", FakeReadableSink(), is_drained=False)) == []
        assert names(home, link("other", "other", FakeSink())) == [], "what cannot be read cannot be drained"

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(story())


def _fault(chance: random.Random, rate: float) -> Fault | None:
    if chance.random() >= rate:
        return None
    faults: list[Fault] = [
        Raised(AWAY),
        Lost(AWAY),
        Hung(),
        Hung(is_done=True),
        Delayed(before=chance.uniform(0, 30)),
        Delayed(after=25),
    ]
    return chance.choice(faults)


@pytest.mark.fixes("B053")
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.0, 0.1, 0.4]))
def test_killed_at_any_await_each_letter_comes_home_exactly_once(seed: int, rate: float) -> None:
    chance = random.Random(seed)

    async def story() -> None:
        scene = Scene()
        faults: Callable[[str], Fault | None] = lambda _: _fault(chance, rate)
        for double in (scene.home.faults, scene.leases.faults, scene.topic.faults):
            double.choose = faults
        written = 0
        for _ in range(chance.randint(1, 6)):
            running = asyncio.create_task(_quietly(scene.job()))
            for _ in range(chance.randint(0, 4)):
                scene.topic.letters += [a_letter(written + more) for more in range(3)]
                written += 3
                await asyncio.sleep(chance.choice([0.0, 0.01, 1.0, 40.0]))
            for _ in range(chance.randint(0, 60)):
                await asyncio.sleep(0)
            await _kill(running, scene)
            await asyncio.sleep(chance.choice([0.0, 60.0]))
        for double in (scene.home.faults, scene.leases.faults, scene.topic.faults):
            double.choose = lambda _: None
        await settled(scene.job(), 120.0)
        assert sorted(scene.drained()) == list(range(written))
        inserts = [moved.letter_id for moved in scene.home.history]
        assert len(inserts) == len(set(inserts)) == written

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(story())


async def _quietly(job: DrainJob) -> None:
    await job.run()


async def _kill(running: asyncio.Task[None], scene: Scene) -> None:
    """End the process where it stands: nothing that it does from now on reaches the database."""
    chosen = scene.leases.faults.choose
    scene.leases.faults.choose = scene.home.faults.choose = lambda _: Hung()
    running.cancel()
    await asyncio.wait({running})
    scene.leases.faults.choose = scene.home.faults.choose = chosen

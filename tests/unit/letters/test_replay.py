from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest

from outboxd.errors import AssignmentLost, DatabaseUnreachable
from outboxd.pipeline.letters.replay import Replayer, ReplayPace, ReplayPostponed
from outboxd.ports import ReplayItem
from outboxd.records import Letter, LetterStatus, TopicPartition
from outboxd.telemetry import letters as events
from outboxd.testing.fakes.clock import FakeClock, SeededRandom, virtual_time
from outboxd.testing.fakes.faults import Lost, Raised
from outboxd.testing.fakes.letters import FakeLetters
from tests.unit.letters.doubles import Recorder, a_letter

MINE = TopicPartition("orders.new", 0)
AWAY = DatabaseUnreachable("the home is away")
S = LetterStatus


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.home = FakeLetters(self.clock, SeededRandom(1))
        self.telemetry = Recorder()
        self.partitions: Collection[TopicPartition] = {MINE}
        self.runs: list[int] = []
        self.ran_at: list[float] = []
        self.outcome: Callable[[ReplayItem], BaseException | None] = lambda _: None
        self.takes = 0.5
        self.at_once = self.most_at_once = 0

    async def replay(self, item: ReplayItem) -> None:
        self.runs.append(item.letter.offset)
        self.ran_at.append(self.clock.monotonic())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.takes)
        finally:
            self.at_once -= 1
        if (error := self.outcome(item)) is not None:
            raise error

    def replayer(self, owner: str = "daemon-1", concurrency: int = 4, **changes: str) -> Replayer:
        return Replayer(
            pipeline=changes.get("pipeline", "orders"),
            group=changes.get("group", "orders"),
            store=self.home,
            owner=owner,
            partitions=lambda: self.partitions,
            replay=self.replay,
            clock=self.clock,
            random=SeededRandom(2),
            telemetry=self.telemetry,
            pace=ReplayPace(concurrency=concurrency),
        )

    async def job(self, *letters: Letter) -> None:
        await self.home.store(letters, sink="home")
        self.job_id = (await self.home.create_replay([letter.id for letter in letters], actor="me")).id

    def statuses(self, *offsets: int) -> list[LetterStatus]:
        return [self.home.status(a_letter(offset).id) for offset in offsets]


async def settled(replayer: Replayer, seconds: float = 30.0) -> None:
    running = asyncio.create_task(replayer.run())
    await asyncio.sleep(seconds)
    replayer.stop()
    await running


@virtual_time
async def test_a_replayed_letter_is_resolved_and_one_that_fails_again_is_failed_with_the_new_error() -> None:
    scene = Scene()
    await scene.job(a_letter(0), a_letter(1))
    scene.outcome = lambda item: ValueError("still wrong") if item.letter.offset == 1 else None
    await settled(scene.replayer())
    assert scene.statuses(0, 1) == [S.RESOLVED, S.FAILED]
    assert scene.home.history[-1].reason == "ValueError: still wrong"
    job = await scene.home.replay(scene.job_id)
    assert (job.state, job.resolved, job.failed) == ("DONE", 1, 1)


@virtual_time
async def test_so_many_letters_are_in_hand_and_no_more() -> None:
    scene = Scene()
    await scene.job(*(a_letter(offset, key=b"%d" % offset) for offset in range(20)))
    await settled(scene.replayer(concurrency=4))
    assert sorted(scene.runs) == list(range(20))
    assert scene.most_at_once == 4


@virtual_time
async def test_letters_of_one_key_run_one_after_another_in_order() -> None:
    scene = Scene()
    await scene.job(*(a_letter(offset, key=b"k") for offset in range(6)))
    scene.outcome = lambda item: ValueError() if item.letter.offset == 2 else None
    await settled(scene.replayer(concurrency=4))
    assert scene.runs == [0, 1, 2, 3, 4, 5]
    assert scene.most_at_once == 1


@virtual_time
async def test_letters_of_others_are_never_claimed() -> None:
    scene = Scene()
    others = [a_letter(1, pipeline="other"), a_letter(2, group="other"), a_letter(3, partition=7), a_letter(4)]
    await scene.job(*others)
    await settled(scene.replayer())
    assert scene.runs == [4]
    scene.partitions = ()
    await scene.job(a_letter(5))
    await settled(scene.replayer("daemon-2"))
    assert scene.runs == [4]


@pytest.mark.parametrize("error", [ReplayPostponed("the pipeline pauses"), AssignmentLost("moved on")])
@virtual_time
async def test_a_run_that_does_not_count_gives_the_claim_back_and_is_not_tried_hotly(error: Exception) -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    scene.takes = 0.0
    scene.outcome = lambda _: error if len(scene.runs) < 4 else None
    await settled(scene.replayer(), 60.0)
    assert scene.statuses(0) == [S.RESOLVED]
    assert len(scene.runs) == 4
    assert len(scene.telemetry.of(events.ReplayReturned)) == 3
    assert scene.ran_at[-1] - scene.ran_at[0] >= 15.0


@virtual_time
async def test_two_replicas_run_each_letter_once() -> None:
    scene = Scene()
    await scene.job(*(a_letter(offset, key=b"%d" % offset) for offset in range(20)))
    await asyncio.gather(settled(scene.replayer("a")), settled(scene.replayer("b")))
    assert sorted(scene.runs) == list(range(20))


@virtual_time
async def test_an_outage_of_the_home_is_waited_out() -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    scene.home.faults.choose = lambda _: Raised(AWAY)
    running = asyncio.create_task((replayer := scene.replayer()).run())
    await asyncio.sleep(600.0)
    scene.home.faults.choose = lambda _: None
    await asyncio.sleep(30.0)
    assert scene.statuses(0) == [S.RESOLVED]
    replayer.stop()
    await running


@virtual_time
async def test_an_outcome_is_told_until_the_home_knows_it() -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    scene.home.faults.plan("finish", *[Raised(AWAY)] * 5)
    await settled(scene.replayer(), 60.0)
    assert (scene.runs, scene.statuses(0)) == ([0], [S.RESOLVED])


@virtual_time
async def test_an_outcome_whose_answer_was_lost_counts_once() -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    scene.home.faults.plan("finish", Lost(AWAY))
    await settled(scene.replayer(), 60.0)
    assert (scene.runs, scene.statuses(0)) == ([0], [S.RESOLVED])


@virtual_time
async def test_a_claim_whose_answer_was_lost_is_given_back_though_this_replica_lives() -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    scene.home.faults.plan("claim", Lost(AWAY))
    running = asyncio.create_task((replayer := scene.replayer()).run())
    await asyncio.sleep(30.0)
    assert scene.statuses(0) == [S.PROCESSING]
    await asyncio.sleep(60.0)
    assert (scene.runs, scene.statuses(0)) == ([0], [S.RESOLVED])
    replayer.stop()
    await running


@virtual_time
async def test_a_claim_that_could_not_be_given_back_comes_back_though_this_replica_lives() -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    scene.takes = 0.0
    scene.outcome = lambda _: AssignmentLost("moved on") if len(scene.runs) < 2 else None
    scene.home.faults.plan("give_back", Raised(AWAY))
    running = asyncio.create_task((replayer := scene.replayer()).run())
    await asyncio.sleep(30.0)
    assert scene.statuses(0) == [S.PROCESSING]
    await asyncio.sleep(90.0)
    assert scene.statuses(0) == [S.RESOLVED]
    replayer.stop()
    await running


@virtual_time
async def test_a_long_run_keeps_its_claim() -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    scene.takes = 300.0
    first, second = scene.replayer("a"), scene.replayer("b")
    await asyncio.gather(settled(first, 400.0), settled(second, 400.0))
    assert (scene.runs, scene.statuses(0)) == ([0], [S.RESOLVED])


@virtual_time
async def test_a_replica_that_died_leaves_its_claims_to_the_next() -> None:
    scene = Scene()
    await scene.job(a_letter(0))
    await scene.home.claim(pipeline="orders", group="orders", partitions=[MINE], owner="dead", limit=1)
    await settled(scene.replayer(), 90.0)
    assert scene.statuses(0) == [S.RESOLVED]


@virtual_time
async def test_stopping_finishes_what_is_in_hand_and_claims_nothing_more() -> None:
    scene = Scene()
    await scene.job(*(a_letter(offset, key=b"k") for offset in range(3)))
    scene.takes = 10.0
    running = asyncio.create_task((replayer := scene.replayer(concurrency=1)).run())
    await asyncio.sleep(1.0)
    replayer.stop()
    await running
    assert scene.statuses(0, 1, 2) == [S.RESOLVED, S.NEW, S.NEW]


@virtual_time
async def test_cancelled_it_gives_its_claims_back_and_leaves_no_task() -> None:
    scene = Scene()
    await scene.job(a_letter(0), a_letter(1))
    scene.takes = 1000.0
    running = asyncio.create_task(scene.replayer().run())
    await asyncio.sleep(1.0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert scene.statuses(0, 1) == [S.NEW, S.NEW]
    assert asyncio.all_tasks() == {asyncio.current_task()}

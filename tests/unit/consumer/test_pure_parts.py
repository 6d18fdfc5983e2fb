"""The decisions that need no clock and no broker: progress, breaker, backoff, judgement."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxd.pipeline.consumer.attempt import DeadLettered, Outage, Retrying, RetryPolicy, Skipped, Stopped, judge
from outboxd.pipeline.consumer.backoff import Backoff
from outboxd.pipeline.consumer.breaker import Breaker
from outboxd.pipeline.consumer.progress import Progress
from outboxd.pipeline.letters.classification import Decision
from outboxd.records import Verdict
from outboxd.testing.fakes.clock import SeededRandom


def test_an_offset_waits_for_every_earlier_record() -> None:
    progress: Progress[str] = Progress(0, None)
    for offset in range(4):
        progress.took(offset, "record")
    progress.done(1)
    progress.done(3)
    assert progress.committable() == 0
    progress.done(0)
    assert progress.committable() == 2
    progress.done(2)
    assert progress.committable() == 4


@pytest.mark.fixes("B010")
def test_what_is_committed_is_the_offset_after_the_last_record() -> None:
    progress: Progress[str] = Progress(0, None)
    for offset in (0, 1, 2):
        progress.took(offset, "record")
        progress.done(offset)
    assert progress.committable() == 3


def test_a_commit_never_goes_back_and_is_never_negative() -> None:
    progress: Progress[str] = Progress(5, 5)
    assert progress.committable() is None
    progress.commit_acknowledged(9)
    progress.commit_acknowledged(7)
    assert progress.committed == 9
    assert Progress[str](-1, None).committable() is None


def test_a_record_that_comes_twice_in_one_assignment_is_taken_once() -> None:
    progress: Progress[str] = Progress(0, None)
    assert progress.took(0, "record")
    assert not progress.took(0, "record")


def test_a_stuck_record_with_many_done_behind_it_costs_one_entry() -> None:
    progress: Progress[str] = Progress(0, None)
    for offset in range(10_000):
        progress.took(offset, "record")
        if offset:
            progress.done(offset)
    assert len(progress.pending) == 1
    assert progress.safe == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.randoms())
def test_the_safe_offset_is_the_first_that_is_not_done(gaps: list[int], random: object) -> None:
    progress: Progress[str] = Progress(0, None)
    offsets, at = [], 0
    for gap in gaps:
        at += gap
        offsets.append(at)
        progress.took(at, "record")
        at += 1
    order = list(offsets)
    random.shuffle(order)  # type: ignore[attr-defined]
    missing = set(offsets)
    for offset in order:
        progress.done(offset)
        missing.discard(offset)
        assert progress.safe == (min(missing) if missing else at)


def breaker() -> Breaker[str]:
    return Breaker(failures=3, within=10.0, probe_every=5.0)


def test_failures_of_several_records_and_keys_without_a_success_open_the_breaker_and_give_charges_back() -> None:
    it = breaker()
    assert it.failed("a", "k1", 0.0) is None
    assert it.failed("a", "k1", 1.0) is None
    assert it.failed("b", "k2", 2.0) is None
    assert it.failed("c", "k2", 3.0) == ["a", "a", "b", "c"]
    assert it.is_open


def test_one_key_alone_never_opens_the_breaker() -> None:
    it = breaker()
    assert all(it.failed(str(record), "k", float(record)) is None for record in range(9))


def test_a_success_or_the_end_of_the_window_clears_what_was_counted() -> None:
    it = breaker()
    it.failed("a", "k1", 0.0)
    it.failed("b", "k2", 1.0)
    it.succeeded("d")
    assert it.failed("c", "k3", 2.0) is None
    it.failed("b", "k2", 3.0)
    assert it.failed("a", "k1", 13.5) is None


def test_while_open_one_record_at_a_time_probes_and_only_its_success_closes() -> None:
    it = breaker()
    it.pause(0.0)
    assert not it.may_probe(4.9)
    assert it.may_probe(5.0)
    it.probing("a", 5.0)
    assert not it.may_probe(50.0)
    assert not it.succeeded("older")
    assert it.is_open
    it.probed("a")
    assert not it.may_probe(9.9)
    it.probing("b", 10.0)
    assert it.succeeded("b")
    assert not it.is_open


@pytest.mark.parametrize(("jitter", "low", "high"), [("full", 0.0, 4.0), ("equal", 2.0, 4.0), ("none", 4.0, 4.0)])
def test_waits_grow_by_the_factor_within_the_jitter(jitter: str, low: float, high: float) -> None:
    backoff = Backoff(initial=1.0, factor=2.0, maximum=30.0, jitter=jitter)  # type: ignore[arg-type]
    waits = [backoff.delay(3, SeededRandom(seed)) for seed in range(50)]
    assert all(low <= wait <= high for wait in waits)
    assert max(waits) > high * 0.8


def test_no_wait_is_longer_than_the_cap_however_many_failures() -> None:
    assert Backoff(initial=1.0, factor=1000.0, maximum=30.0, jitter="none").delay(10**9, SeededRandom()) == 30.0


POLICY = RetryPolicy(attempts=3, elapsed=60.0, backoff=Backoff(initial=1, factor=2, maximum=9, jitter="none"))


@pytest.mark.parametrize(
    ("verdict", "attempts", "elapsed", "is_outage", "outcome"),
    [
        (Verdict.RETRY, 1, 0.0, False, Retrying(delay=1)),
        (Verdict.RETRY, 2, 0.0, False, Retrying(delay=2)),
        (Verdict.RETRY, 3, 0.0, False, DeadLettered(rule="r; attempts used up (3 of 3)")),
        (Verdict.RETRY, 2, 60.0, False, DeadLettered(rule="r; retry.elapsed used up (60 s)")),
        (Verdict.RETRY, 3, 99.0, True, Outage(rule="r")),
        (Verdict.DEAD_LETTER, 1, 0.0, True, DeadLettered(rule="r")),
        (Verdict.SKIP, 1, 0.0, False, Skipped(rule="r")),
        (Verdict.PAUSE, 9, 0.0, False, Outage(rule="r")),
        (Verdict.STOP, 1, 0.0, False, Stopped(rule="r")),
    ],
)
def test_a_failure_is_judged_by_its_verdict_and_what_is_left(
    verdict: Verdict, attempts: int, elapsed: float, is_outage: bool, outcome: object
) -> None:
    decision = Decision(verdict=verdict, rule="r")
    assert (
        judge(
            decision,
            attempts=attempts,
            elapsed=elapsed,
            policy=POLICY,
            is_outage=is_outage,
            random=SeededRandom(),
        )
        == outcome
    )

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from outboxd.errors import ChainExhausted, SinkUnavailable
from outboxd.pipeline.letters.chain import Chain, ChainLink
from outboxd.telemetry import letters as events
from outboxd.testing.fakes.clock import FakeClock, virtual_time
from outboxd.testing.fakes.faults import Delayed, Hung, Late, Raised
from outboxd.testing.fakes.sinks import FakeSink, StubbornSink
from tests.unit.letters.doubles import Recorder, a_chain, a_letter

DOWN = SinkUnavailable("down")


def always(fault: object) -> object:
    return lambda call: fault if call == "write" else None


@virtual_time
async def test_a_letter_goes_to_the_first_sink_and_no_further() -> None:
    first, second = FakeSink(), FakeSink()
    chain, _telemetry = a_chain(postgres=first, kafka=second)
    await chain.open()
    assert await chain.write([a_letter(1), a_letter(2)]) == ["postgres", "postgres"]
    assert (first.letters, second.letters) == ([a_letter(1), a_letter(2)], [])
    assert chain.status()["in_use"] == "postgres"
    await chain.close()
    assert not first.is_open


@virtual_time
async def test_nothing_to_write_asks_no_sink() -> None:
    chain, _ = a_chain(postgres=FakeSink())
    assert await chain.write([]) == []


@virtual_time
async def test_a_sink_that_fails_is_left_and_the_next_one_is_told_why() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("write", Raised(SinkUnavailable("connection refused by shop")))
    chain, telemetry = a_chain(postgres=first, kafka=second)
    await chain.open()
    assert await chain.write([a_letter()]) == ["kafka"]
    [failed] = telemetry.of(events.SinkFailed)
    assert isinstance(failed, events.SinkFailed)
    assert (failed.sink, failed.next_sink, failed.reason) == ("postgres", "kafka", "connection refused by shop")


@virtual_time
async def test_a_sink_that_hangs_is_left_at_its_deadline() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("write", Hung())
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    began = asyncio.get_running_loop().time()
    assert await chain.write([a_letter()]) == ["postgres"]
    assert asyncio.get_running_loop().time() - began == 5.0


@virtual_time
async def test_opening_counts_towards_the_deadline_of_a_write() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("open", Raised(DOWN), Delayed(before=4.0))
    first.faults.plan("write", Delayed(before=4.0))
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    await asyncio.sleep(10.0)
    began = asyncio.get_running_loop().time()
    assert await chain.write([a_letter()]) == ["postgres"]
    assert asyncio.get_running_loop().time() - began == 5.0


@virtual_time
async def test_a_sink_that_ignores_its_cancellation_does_not_hold_the_chain() -> None:
    stubborn, second = StubbornSink(), FakeSink()
    chain, telemetry = a_chain(plugin=stubborn, postgres=second)
    await chain.open()
    began = asyncio.get_running_loop().time()
    assert await chain.write([a_letter(1)]) == ["postgres"]
    assert asyncio.get_running_loop().time() - began == 5.0
    # It stores late: then the letter is in two places, under one id.
    stubborn.let_go()
    await asyncio.sleep(1.0)
    assert stubborn.letters == second.letters == [a_letter(1)]
    assert telemetry.of(events.SinkAnsweredLate)


@virtual_time
async def test_calls_that_never_return_are_bounded() -> None:
    stubborn, second = StubbornSink(), FakeSink()
    chain, _ = a_chain(plugin=stubborn, postgres=second)
    await chain.open()
    for number in range(40):
        await asyncio.sleep(60.0)
        assert await chain.write([a_letter(number)]) == ["postgres"]
    running = [task for task in asyncio.all_tasks() if task.get_name() == "sink plugin"]
    assert len(running) == 16
    reason = chain.sinks[0].reason
    assert reason is not None
    assert "never returned" in reason
    stubborn.let_go()
    await asyncio.sleep(1.0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "sink plugin"]


@virtual_time
async def test_a_letter_that_one_sink_refuses_goes_on_while_the_others_stay() -> None:
    first = FakeSink(refuses=lambda letter: "too large" if letter.offset == 2 else None)
    second = FakeSink()
    chain, telemetry = a_chain(kafka=first, postgres=second)
    await chain.open()
    assert await chain.write([a_letter(1), a_letter(2), a_letter(3)]) == ["kafka", "postgres", "kafka"]
    assert [letter.offset for letter in first.letters] == [1, 3]
    assert not chain.sinks[0].breaker.is_open, "a refusal is an answer, not a failure of the sink"
    [refused] = telemetry.of(events.LettersRefused)
    assert isinstance(refused, events.LettersRefused)
    assert refused.reason == "too large"
    assert refused.next_sink == "postgres"


@pytest.mark.fixes("B048")
@virtual_time
async def test_a_letter_that_every_sink_refuses_says_so_and_names_what_was_stored() -> None:
    refuses = lambda letter: "too large" if letter.offset == 2 else None
    chain, telemetry = a_chain(kafka=FakeSink(refuses=refuses), postgres=FakeSink(refuses=refuses))
    await chain.open()
    with pytest.raises(ChainExhausted, match="every sink refused") as raised:
        await chain.write([a_letter(1), a_letter(2)])
    assert raised.value.reason == "letter_refused"
    assert raised.value.stored == {a_letter(1).id: "kafka"}
    assert len(telemetry.of(events.ChainExhausted)) == 1


@pytest.mark.fixes("B048")
@virtual_time
async def test_a_chain_whose_sinks_are_all_down_says_so_and_takes_the_letter_once_one_returns() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("write", Hung(), Raised(DOWN))
    second.faults.plan("write", Raised(DOWN), None)
    chain, telemetry = a_chain(kafka=first, postgres=second)
    await chain.open()
    with pytest.raises(ChainExhausted, match=r"kafka: .*5 s; postgres: down") as raised:
        await chain.write([a_letter()])
    assert raised.value.reason == "chain_exhausted"
    # At once, though both breakers are open: a sink is always tried when no other is left.
    assert await chain.write([a_letter()]) == ["postgres"]
    assert telemetry.of(events.SinkRecovered)


@virtual_time
async def test_refused_by_one_and_down_at_another_may_still_be_taken_later() -> None:
    first, second = FakeSink(refuses=lambda _: "too large"), FakeSink()
    second.faults.plan("write", Raised(DOWN))
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    with pytest.raises(ChainExhausted) as raised:
        await chain.write([a_letter()])
    assert raised.value.reason == "chain_exhausted"
    assert await chain.write([a_letter()]) == ["postgres"]


@virtual_time
async def test_a_failed_sink_is_passed_over_for_a_growing_while() -> None:
    first, second = FakeSink(faults=None), FakeSink()
    first.faults.choose = always(Raised(DOWN))  # type: ignore[assignment]
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    tried = []
    for second_number in range(120):
        await chain.write([a_letter(second_number)])
        tried.append(first.faults.calls.count("write"))
        await asyncio.sleep(1.0)
    tries = [number for number in range(1, 120) if tried[number] > tried[number - 1]]
    gaps = [after - before for before, after in itertools.pairwise(tries)]
    assert gaps == sorted(gaps)
    assert gaps[0] == 2
    assert gaps[-1] == 30


@virtual_time
async def test_while_a_failed_sink_is_tried_again_other_letters_do_not_wait_for_it() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("write", Raised(DOWN), Hung())
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    await chain.write([a_letter(0)])
    await asyncio.sleep(2.0)
    probing = asyncio.create_task(chain.write([a_letter(1)]))
    await asyncio.sleep(0.1)
    began = asyncio.get_running_loop().time()
    assert await chain.write([a_letter(2)]) == ["postgres"]
    assert asyncio.get_running_loop().time() == began
    assert await probing == ["postgres"]


@virtual_time
async def test_writes_that_were_under_way_when_a_sink_failed_count_as_one_failure() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.choose = always(Raised(DOWN))  # type: ignore[assignment]
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    await asyncio.gather(*(chain.write([a_letter(number)]) for number in range(64)))
    assert 0.0 < chain.sinks[0].breaker.retry_in <= 2.0


@virtual_time
async def test_a_sink_that_stores_late_leaves_the_letter_in_two_places_and_nothing_else() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("write", Late(3.0, SinkUnavailable("no answer")))
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    assert await chain.write([a_letter()]) == ["postgres"]
    await asyncio.sleep(5.0)
    assert first.letters == second.letters == [a_letter()]


@virtual_time
async def test_the_chain_opens_though_a_sink_is_down_and_opens_it_later() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("open", Raised(DOWN))
    second.faults.plan("open", Hung())
    chain, telemetry = a_chain(kafka=first, postgres=second)
    await chain.open()
    assert {failed.sink for failed in telemetry.of(events.SinkFailed)} == {"kafka", "postgres"}  # type: ignore[attr-defined]
    assert await chain.write([a_letter()]) == ["kafka"]


@pytest.mark.parametrize("answers", [[], [None], ["yes"]])
@virtual_time
async def test_a_plugin_that_answers_wrongly_has_stored_nothing_for_sure(answers: list[object]) -> None:
    class Wrong(FakeSink):
        async def write(self, letters: object) -> object:  # type: ignore[override]
            return answers

    second = FakeSink()
    chain, _ = a_chain(plugin=Wrong(), postgres=second)
    await chain.open()
    assert await chain.write([a_letter()]) == ["postgres"]


@pytest.mark.parametrize("error", [RuntimeError("a bug"), TimeoutError(), asyncio.CancelledError()])
@virtual_time
async def test_any_error_of_a_plugin_leads_to_the_next_sink(error: BaseException) -> None:
    class Broken(FakeSink):
        async def write(self, letters: object) -> object:  # type: ignore[override]
            raise error

    chain, _ = a_chain(plugin=Broken(), postgres=FakeSink())
    await chain.open()
    assert await chain.write([a_letter()]) == ["postgres"]


@virtual_time
async def test_a_cancelled_write_cancels_the_call_of_the_sink() -> None:
    first = FakeSink()
    first.faults.plan("write", Hung())
    chain, _ = a_chain(kafka=first, postgres=FakeSink())
    await chain.open()
    writing = asyncio.create_task(chain.write([a_letter()]))
    await asyncio.sleep(1.0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not chain.sinks[0].breaker.is_open


@virtual_time
async def test_observers_are_told_and_never_felt() -> None:
    told: list[str] = []

    def observe(letter: object, sink: str) -> None:
        told.append(sink)
        raise RuntimeError("an observer's bug")

    telemetry = Recorder()
    link = ChainLink(name="home", type="postgres", sink=FakeSink(), deadline=timedelta(seconds=1))
    chain = Chain(pipeline="p", links=[link], clock=FakeClock(), telemetry=telemetry, on_written=observe)
    await chain.open()
    assert await chain.write([a_letter(1), a_letter(2)]) == ["home", "home"]
    assert told == ["home", "home"]
    assert len(telemetry.of(events.ObserverFailed)) == 2


@virtual_time
async def test_closing_goes_on_past_a_sink_that_does_not_close() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("close", Hung())
    chain, telemetry = a_chain(kafka=first, postgres=second)
    await chain.open()
    await chain.close()
    assert not second.is_open
    assert telemetry.of(events.SinkCloseFailed)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@virtual_time
async def test_the_status_says_which_sink_failed_why_and_which_works() -> None:
    first, second = FakeSink(), FakeSink()
    first.faults.plan("write", Raised(DOWN))
    chain, _ = a_chain(kafka=first, postgres=second)
    await chain.open()
    await chain.write([a_letter()])
    status = chain.status()
    assert status["in_use"] == "postgres"
    assert isinstance(status["sinks"], list)
    failed, works = status["sinks"]
    assert (failed["state"], failed["reason"], works["state"], works["letters"]) == ("failed", "down", "ok", 1)

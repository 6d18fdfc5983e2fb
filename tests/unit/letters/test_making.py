from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxd.errors import HandlerTimeout, PluginBroken
from outboxd.pipeline.letters.making import FailureFacts, LetterHooks, Origin, make_letter, make_row_letter
from outboxd.pipeline.letters.text import MESSAGE_BYTES, TRACEBACK_BYTES, error_message, error_traceback, mask_secrets
from outboxd.records import Headers, Letter, OutboxRow, Stage, TimestampType
from outboxd.telemetry.redaction import Redactor
from tests.unit.letters.doubles import START, a_record

ORIGIN = Origin(cluster_id="cluster", pipeline="orders", group="orders-group", handler="shop.orders:handle")


def facts(error: BaseException, stage: Stage = Stage.HANDLE) -> FailureFacts:
    return FailureFacts(
        error=error,
        stage=stage,
        attempts=3,
        first_failed_at=START,
        last_failed_at=START + timedelta(seconds=9),
        rule="rules[0]: exception ValueError",
    )


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("it did not raise")


def letter_for(error: BaseException) -> Letter:
    return make_letter(a_record(7), facts(error), ORIGIN)


def test_a_letter_is_the_record_and_why_it_failed() -> None:
    record = a_record(7)
    letter = letter_for(ValueError("bad"))
    assert (letter.topic, letter.partition, letter.offset) == ("orders.new", 0, 7)
    assert (letter.key, letter.value, letter.headers) == (record.key, record.value, record.headers)
    assert (letter.timestamp, letter.timestamp_type) == (record.timestamp, record.timestamp_type)
    assert (letter.pipeline, letter.group, letter.handler) == ("orders", "orders-group", "shop.orders:handle")
    assert (letter.attempts, letter.rule) == (3, "rules[0]: exception ValueError")
    assert (letter.first_failed_at, letter.last_failed_at) == (START, START + timedelta(seconds=9))
    assert letter.outbox_id is None


@pytest.mark.fixes("B053")
def test_a_repeat_is_the_same_letter_and_a_topic_made_anew_another() -> None:
    first, again = letter_for(ValueError("bad")), letter_for(KeyError("another error, the same record"))
    assert first.id == again.id
    for changes in ({"timestamp": 1}, {"value": b"other"}, {"value": None}, {"partition": 1}, {"topic": "other"}):
        other = make_letter(a_record(7, **changes), facts(ValueError()), ORIGIN)
        assert other.id != first.id
    assert make_letter(a_record(7), facts(ValueError()), replace(ORIGIN, group="other")).id != first.id


def test_a_rows_letter_has_the_target_and_no_offset() -> None:
    row = OutboxRow(row_id=9, shard=0, topic="orders.new", key=b"k", value=None)
    letter = make_row_letter(row, "relay:9", facts(ValueError(), Stage.PUBLISH), replace(ORIGIN, group=None))
    assert (letter.topic, letter.partition, letter.offset, letter.outbox_id) == ("orders.new", -1, -1, "relay:9")
    assert (letter.timestamp, letter.timestamp_type) == (-1, TimestampType.NONE)


def from_value_error() -> None:
    try:
        raise ValueError("the root")
    except ValueError as error:
        raise RuntimeError("the wrapper") from error


@pytest.mark.fixes("B051")
def test_outer_and_root_class_are_both_kept() -> None:
    letter = letter_for(raised(from_value_error))
    assert (letter.error_class, letter.error_root_class) == ("RuntimeError", "ValueError")
    assert letter.error_message == "the wrapper"
    assert "ValueError: the root" in letter.error_traceback


@pytest.mark.fixes("B051")
def test_a_group_is_kept_with_the_root_of_its_first_member() -> None:
    group = BaseExceptionGroup("two failed", [raised(from_value_error), KeyError("second")])
    letter = letter_for(group)
    assert (letter.error_class, letter.error_root_class) == ("ExceptionGroup", "ValueError"), (
        "a group of Exceptions is one"
    )
    assert "KeyError: 'second'" in letter.error_traceback


@pytest.mark.fixes("B051")
def test_an_error_that_cannot_be_printed_still_makes_a_letter() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    letter = letter_for(raised(lambda: (_ for _ in ()).throw(Mute())))
    assert "cannot be printed" in letter.error_message
    assert "Mute" in letter.error_class


@pytest.mark.fixes("B051")
def test_a_message_is_one_line_that_any_store_takes() -> None:
    letter = letter_for(ValueError("first\nsecond\r\nthird \0 \ud800 ü"))
    assert letter.error_message == r"first\nsecond\r\nthird \x00 \ud800 ü"
    assert "\0" not in letter.error_traceback
    letter.error_traceback.encode("utf-8")


@pytest.mark.fixes("B051")
@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("could not connect to postgresql://app:hunter2@db:5432/shop", "hunter2"),
        ("amqp://guest:p@ss/w:rd@mq/vhost failed", "p@ss/w:rd"),
        ("redis://:hunter2@cache", "hunter2"),
        ("host=db user=app password=hunter2 dbname=shop", "hunter2"),
        ("host=db password='hun ter2' dbname=shop", "hun ter2"),
        ("{'user': 'app', 'password': 'hunter2'}", "hunter2"),
        ('{"sasl_plain_password": "hunter2"}', "hunter2"),
        ("PGPASSWORD=hunter2 psql", "hunter2"),
        ("Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.e30.abc", "eyJhbGciOiJIUzI1NiJ9.e30.abc"),
        ("api_key=hunter2&x=1", "hunter2"),
        ("client_secret: hunter2", "hunter2"),
    ],
)
def test_secrets_are_masked_in_messages_and_tracebacks(text: str, secret: str) -> None:
    error = raised(lambda: (_ for _ in ()).throw(RuntimeError(text)))
    letter = letter_for(error)
    assert secret not in letter.error_message
    assert secret not in letter.error_traceback
    assert "***" in letter.error_message


def test_what_is_no_secret_stays_readable() -> None:
    text = "order 17 of http://shop/orders?page=2 cannot go from done to new"
    assert mask_secrets(text) == text


@pytest.mark.parametrize("text", ["password=" * 20_000, "a://" * 50_000, "'" * 100_000, "token:" + "x" * 300_000])
def test_masking_takes_no_time_whatever_the_text(text: str) -> None:
    assert len(error_message(ValueError(text)).encode()) <= MESSAGE_BYTES


@given(st.text(max_size=200).map(lambda text: text * 200))
def test_texts_keep_their_caps(text: str) -> None:
    error = raised(lambda: (_ for _ in ()).throw(ValueError(text)))
    message, trace = error_message(error), error_traceback(error)
    assert len(message.encode("utf-8")) <= MESSAGE_BYTES
    assert len(trace.encode("utf-8")) <= TRACEBACK_BYTES
    assert "\n" not in message
    assert "\0" not in message + trace


def test_a_long_traceback_keeps_its_start_and_its_end() -> None:
    trace = error_traceback(raised(lambda: (_ for _ in ()).throw(ValueError("x" * 100_000 + "the end"))))
    assert trace.startswith("Traceback (most recent call last)")
    assert trace.rstrip().endswith("the end")


def test_a_bottomless_recursion_makes_a_letter() -> None:
    def down() -> None:
        down()

    letter = letter_for(raised(down))
    assert letter.error_class == "RecursionError"


async def test_our_own_frames_before_the_handlers_are_left_out() -> None:
    from outboxd.pipeline.letters.owned_calls import OwnedCalls

    async def handler() -> None:
        raise ValueError("of the handler")

    with pytest.raises(ValueError, match="of the handler") as raised_error:
        await OwnedCalls("x").run(handler, 5.0)
    error = raised_error.value
    # As the consumer sees it: its own frames stand first.
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    trace = error_traceback(error)
    assert "owned_calls.py" not in trace
    assert "in handler" in trace


def test_an_error_of_outboxd_itself_keeps_its_frames() -> None:
    def ours() -> None:
        raise HandlerTimeout("30s passed")

    assert "HandlerTimeout: 30s passed" in error_traceback(raised(ours))


def place_one(number: int) -> None:
    raise ValueError(f"order {number} of customer {uuid4()} is wrong")


def place_two(number: int) -> None:
    raise ValueError(f"order {number} of customer {uuid4()} is wrong")


def place_three(number: int) -> None:
    raise KeyError(number)


def wrapped(number: int) -> None:
    try:
        place_one(number)
    except ValueError as error:
        raise RuntimeError(f"job {number}") from error


def recursive(number: int) -> None:
    if number % 7 == 0:
        raise LookupError(number)
    recursive(number - 1)


def test_letters_of_five_causes_are_five_groups_whatever_their_text() -> None:
    causes = [place_one, place_two, place_three, wrapped, recursive]
    prints = {letter_for(raised(lambda n=n: causes[n % 5](n))).fingerprint for n in range(1000)}  # type: ignore[misc]
    # `wrapped` has the root of `place_one`, raised one call deeper: a cause of its own.
    assert len(prints) == 5


def test_another_handler_is_another_group() -> None:
    error = raised(lambda: place_one(1))
    other = make_letter(a_record(), facts(error), replace(ORIGIN, handler="other:handler"))
    assert other.fingerprint != letter_for(error).fingerprint


def test_lines_and_addresses_do_not_change_a_group() -> None:
    def at(source: str) -> str:
        names: dict[str, object] = {"__name__": "shop.code"}
        exec(compile(source, f"/tmp/{uuid4()}.py", "exec"), names)
        return letter_for(raised(names["handle"])).fingerprint  # type: ignore[arg-type]

    source = "def handle():\n    raise ValueError('x')\n"
    assert at(source) == at("\n\n# moved\n" + source)
    assert at(source) != at(source.replace("handle():", "handle(a=1):").replace("ValueError", "KeyError"))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", True),
        (b"garbage", False),
        (b"\xff\xfe", False),
        (b"", False),
        (None, False),
    ],
)
def test_the_trace_context_is_kept_and_garbage_ignored(value: bytes | None, expected: bool) -> None:
    record = a_record(headers=Headers((("traceparent", value),)))
    letter = make_letter(record, facts(ValueError()), ORIGIN)
    assert letter.traceparent == (value.decode() if expected and value else None)
    assert letter.headers == record.headers


def test_hooks_may_take_contents_out_but_not_change_what_the_letter_is() -> None:
    def redact(letter: Letter) -> Letter:
        return replace(letter, id=UUID(int=0), offset=99, value=b"(redacted)", error_message="a\0" + "x" * 10_000)

    hooks = LetterHooks(redact=redact, fingerprint=lambda letter: f"finer {letter.value!r}")
    letter = make_letter(a_record(7), facts(ValueError("secret")), ORIGIN, hooks)
    assert (letter.id, letter.offset) == (letter_for(ValueError()).id, 7)
    assert letter.value == b"(redacted)"
    assert len(letter.error_message) <= MESSAGE_BYTES
    assert "\0" not in letter.error_message
    assert letter.fingerprint == "finer b'(redacted)'", "the refining hook sees the redacted letter"


def test_a_redaction_that_fails_writes_nothing_that_was_to_be_taken_out() -> None:
    hooks = LetterHooks(redact=lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(PluginBroken, match="redact hook"):
        make_letter(a_record(), facts(ValueError()), ORIGIN, hooks)


def test_a_refinement_that_fails_leaves_our_own_fingerprint() -> None:
    hooks = LetterHooks(fingerprint=lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    assert (
        make_letter(a_record(), facts(ValueError()), ORIGIN, hooks).fingerprint == letter_for(ValueError()).fingerprint
    )


def test_a_cancellation_of_the_handler_itself_is_an_error_like_any() -> None:
    assert letter_for(asyncio.CancelledError()).error_class == "asyncio.exceptions.CancelledError"


def test_a_secret_of_the_configuration_is_masked_wherever_an_error_says_it() -> None:
    def fail() -> None:
        raise ValueError("login with 7Jb5CvR4eJma7KiN failed")

    hooks = LetterHooks(mask=Redactor(["7Jb5CvR4eJma7KiN"]).text)
    letter = make_letter(a_record(7), facts(raised(fail)), ORIGIN, hooks)
    assert letter.error_message == "login with *** failed"
    assert "ValueError: login with *** failed" in letter.error_traceback
    # The line of code that holds it is part of the traceback, too.
    assert "7Jb5CvR4eJma7KiN" not in letter.error_traceback
    assert letter.id == letter_for(ValueError()).id

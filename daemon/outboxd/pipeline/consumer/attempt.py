"""One call of the handler, and what follows from it: a closed union that the settlement matches.

`judge` is pure: the same failure under the same policy always gives the same outcome.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, cast

from outboxd.api import Codec, Handler, HandlerContext
from outboxd.errors import HandlerTimeout, RecordError
from outboxd.pipeline.consumer.backoff import Backoff
from outboxd.pipeline.consumer.tracing import Tracing
from outboxd.pipeline.letters.classification import Decision
from outboxd.ports import Executor, Random
from outboxd.records import RawRecord, Record, Verdict

__all__ = [
    "DeadLettered",
    "HandlerCall",
    "Outage",
    "Outcome",
    "RetryPolicy",
    "Retrying",
    "Skipped",
    "Stopped",
    "VerdictReturned",
    "judge",
]

ATTEMPTS_USED_UP: Final = "attempts used up"
TIME_USED_UP: Final = "retry.elapsed used up"


class VerdictReturned(RecordError):
    """The handler decided about the record by its return value; the letter's error when it decided so."""

    code = "verdict_returned"

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(f"the handler returned the verdict {verdict}")
        self.verdict = verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """``attempts`` counts calls in total (1: one call); ``elapsed`` seconds from the first charged failure, None for no limit."""

    attempts: int
    elapsed: float | None
    backoff: Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """The same record again, after so many seconds."""

    delay: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered:
    """Down the chain; ``rule`` says what decided."""

    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Done, by a rule."""

    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """Nothing is charged; the pipeline waits for the dependency."""

    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The pipeline fails with this reason."""

    rule: str


_Coroutine = Callable[[Record, HandlerContext], Awaitable[object]]
Outcome = Retrying | DeadLettered | Skipped | Outage | Stopped


def judge(
    decision: Decision, *, attempts: int, elapsed: float, policy: RetryPolicy, is_outage: bool, random: Random
) -> Outcome:
    """What becomes of a failed record; ``attempts`` are those charged with this one, ``elapsed`` seconds since the first.

    While an outage is known (``is_outage``) a retryable failure is part of it (invariant 5).
    """
    match decision.verdict:
        case Verdict.RETRY if is_outage:
            return Outage(rule=decision.rule)
        case Verdict.RETRY if attempts >= policy.attempts:
            return DeadLettered(rule=f"{decision.rule}; {ATTEMPTS_USED_UP} ({attempts} of {policy.attempts})")
        case Verdict.RETRY if policy.elapsed is not None and elapsed >= policy.elapsed:
            return DeadLettered(rule=f"{decision.rule}; {TIME_USED_UP} ({policy.elapsed:g} s)")
        case Verdict.RETRY:
            return Retrying(delay=policy.backoff.delay(attempts, random))
        case Verdict.DEAD_LETTER:
            return DeadLettered(rule=decision.rule)
        case Verdict.SKIP:
            return Skipped(rule=decision.rule)
        case Verdict.PAUSE:
            return Outage(rule=decision.rule)
        case Verdict.STOP:
            return Stopped(rule=decision.rule)


class HandlerCall:
    """Decodes a record and calls the handler with it: inline when it is a coroutine function, else in the executor."""

    __slots__ = ("_call", "_codec", "_context", "_executor", "_handler", "_tracing", "is_plain")

    def __init__(
        self, *, handler: Handler, codec: Codec, context: HandlerContext, executor: Executor, tracing: Tracing
    ) -> None:
        self._handler = handler
        self._codec = codec
        self._context = context
        self._executor = executor
        self._tracing = tracing
        self.opened()

    def opened(self) -> None:
        """Look at the handler again: its `open` may have put another function in place."""
        handle = self._handler.handle
        self.is_plain = not inspect.iscoroutinefunction(handle)
        """A plain function cannot be cancelled: its lane stays occupied until it returns."""
        self._call: _Coroutine = self._call_plain if self.is_plain else cast("_Coroutine", handle)

    def decode(self, raw: RawRecord, attempt: int) -> Record:
        """The record as the handler gets it. Whatever this raises is a failure at stage `decode`."""
        return Record(
            topic=raw.topic,
            partition=raw.partition,
            offset=raw.offset,
            timestamp=raw.timestamp,
            timestamp_type=raw.timestamp_type,
            key=raw.key,
            value=self._codec.decode(raw.value, raw),
            raw_value=raw.value,
            headers=raw.headers,
            attempt=attempt,
        )

    async def call(self, record: Record) -> None:
        """Run the handler. Whatever this raises is a failure at stage `handle`; VerdictReturned when it decided itself."""
        if self.is_plain or self._tracing.is_wanted(record):
            result = await self._run_in_trace(record)
        else:
            result = await self._call(record, self._context)
        if result is not None:
            raise _refusal(result)

    async def _run_in_trace(self, record: Record) -> object:
        with self._tracing.processing(record):
            return await self._call(record, self._context)

    async def _call_plain(self, record: Record, context: HandlerContext) -> object:
        result = await self._executor.run(self._handler.handle, record, context)
        if not isinstance(result, Awaitable):
            return result
        # A coroutine behind a plain function (a decorator's wrapper): unlike the function it can be ended in time.
        deadline = asyncio.timeout(context.deadline.total_seconds())
        try:
            async with deadline:
                return await result
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise HandlerTimeout(
                f"the handler did not return within {context.deadline.total_seconds():g} s",
                suggestion="make the handler faster, or raise handler.timeout",
            ) from error


def _refusal(result: object) -> Exception:
    try:
        return VerdictReturned(Verdict(str(result) if isinstance(result, str) else ""))
    except ValueError:
        return TypeError(f"a handler returns None or a Verdict, not {type(result).__qualname__}")


def returned(error: BaseException) -> Decision | None:
    """The decision that the handler made by returning a verdict; None when the error is to be classified."""
    if isinstance(error, VerdictReturned):
        return Decision(verdict=error.verdict, rule=f"returned by the handler: {error.verdict}")
    return None

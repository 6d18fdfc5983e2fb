"""What lives as long as the run, across clients and assignments: lanes, workers, breaker, settlement, dead letters."""

from __future__ import annotations

from collections.abc import Callable

from outboxd.pipeline.consumer.attempt import HandlerCall, RetryPolicy
from outboxd.pipeline.consumer.backoff import Backoff
from outboxd.pipeline.consumer.breaker import Breaker
from outboxd.pipeline.consumer.dead_letters import DeadLetterQueue, LetterChain
from outboxd.pipeline.consumer.lanes import Lanes
from outboxd.pipeline.consumer.partition import AssignedPartition, InHand
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.consumer.settlement import Decides, Settlement
from outboxd.pipeline.consumer.workers import Workers
from outboxd.pipeline.letters.making import FailureFacts
from outboxd.ports import Clock, Random
from outboxd.records import Letter, RawRecord
from outboxd.telemetry.emitter import Telemetry

__all__ = ["Processing"]


class Processing:
    """The parts, wired to each other; ``resume`` is asked when a partition has room again, ``fail`` ends the pipeline."""

    def __init__(
        self,
        *,
        pipeline: str,
        settings: ConsumerSettings,
        call: HandlerCall,
        classification: Decides,
        chain: LetterChain,
        make_letter: Callable[[RawRecord, FailureFacts], Letter],
        clock: Clock,
        random: Random,
        telemetry: Telemetry,
        resume: Callable[[AssignedPartition], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        outage, retry = settings.errors.outage, settings.errors.retry
        self.breaker: Breaker[InHand] = Breaker(
            failures=outage.failures,
            within=outage.within.total_seconds(),
            probe_every=outage.probe_every.total_seconds(),
        )
        self.workers = Workers(
            name=pipeline,
            call=call,
            concurrency=settings.consume.concurrency,
            timeout=settings.handler.timeout,
            on_death=fail,
        )
        self.lanes = Lanes(
            order=settings.consume.order, breaker=self.breaker, now=clock.monotonic, on_ready=self.workers.wake
        )
        self.letters = DeadLetterQueue(
            chain=chain,
            make=make_letter,
            exhausted=settings.dead_letters.exhausted,
            clock=clock,
            random=random,
            finish=lambda record: self.settlement.finish(record),  # noqa: PLW0108 - made further down
            fail=fail,
        )
        self.settlement = Settlement(
            pipeline=pipeline,
            classification=classification,
            policy=RetryPolicy(
                attempts=retry.attempts,
                elapsed=None if retry.elapsed is None else retry.elapsed.total_seconds(),
                backoff=Backoff(
                    initial=retry.initial.total_seconds(),
                    factor=retry.factor,
                    maximum=retry.max.total_seconds(),
                    jitter=retry.jitter,
                ),
            ),
            breaker=self.breaker,
            lanes=self.lanes,
            letters=self.letters,
            clock=clock,
            random=random,
            telemetry=telemetry,
            fail=fail,
            resume=resume,
            wake=self.workers.wake,
        )
        self.workers.connect(self.lanes, self.settlement)

    def forget(self, partition: AssignedPartition) -> None:
        """The partition is not ours any more: whatever of it is in hand is delivered elsewhere."""
        for record in self.workers.lingering([partition]):
            self.lanes.linger(record)
        partition.close()
        self.lanes.forget(partition)
        self.settlement.waiting.keep(lambda record: not record.partition.is_closed)
        self.letters.keep(lambda record: not record.partition.is_closed)

    async def close(self) -> None:
        """End the workers and forget what waits."""
        self.settlement.close()
        self.letters.close()
        await self.workers.close()

"""A consumer pipeline from one start to its end: opens, joins, works through outages, stops in bounded stages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Coroutine, Sequence
from datetime import timedelta
from typing import Any, Final

from opentelemetry.trace import Tracer

from outboxd.api import Codec, Connections, Handler, HandlerContext, Logger
from outboxd.errors import BrokerError, BrokerUnreachable, TopicError
from outboxd.pipeline.consumer.attempt import HandlerCall
from outboxd.pipeline.consumer.backoff import CONNECT_BACKOFF
from outboxd.pipeline.consumer.collaborators import Drain, GroupClients, Opens
from outboxd.pipeline.consumer.dead_letters import LetterChain
from outboxd.pipeline.consumer.membership import Membership
from outboxd.pipeline.consumer.partition import AssignedPartition
from outboxd.pipeline.consumer.processing import Processing
from outboxd.pipeline.consumer.replaying import replay_in_place
from outboxd.pipeline.consumer.reporting import Reporter
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.consumer.settlement import Decides
from outboxd.pipeline.consumer.start_position import StartPositions
from outboxd.pipeline.consumer.tracing import Tracing
from outboxd.pipeline.letters.making import FailureFacts, LetterHooks, Origin, make_letter
from outboxd.pipeline.letters.replay import Replayer
from outboxd.pipeline.run import Health, PipelineRun, Stall
from outboxd.ports import Admin, Clock, Executor, LetterStore, Random, ReplayItem
from outboxd.records import Letter, RawRecord, TopicPartition
from outboxd.telemetry.emitter import Telemetry

__all__ = ["ConsumerRun"]

_CLOSE_DEADLINE: Final = 5.0
_QUICK: Final = 0.3
_ASK_DEADLINE: Final = 30.0


class ConsumerRun(PipelineRun):
    """One start of a consumer pipeline.

    ``handler_id`` names the handler in letters. ``plugins`` are further plugin objects that this run opens and closes
    (classifiers). ``letter_store`` is the chain's home, None without one: then nothing can be replayed. ``tracer`` None
    makes no spans; the record's trace is handed to the handler all the same. ``drain_timeout`` bounds `stop`.
    """

    def __init__(
        self,
        *,
        name: str,
        settings: ConsumerSettings,
        brokers: GroupClients,
        handler: Handler,
        handler_id: str,
        codec: Codec,
        classification: Decides,
        chain: LetterChain,
        connections: Connections,
        logger: Logger,
        clock: Clock,
        random: Random,
        executor: Executor,
        telemetry: Telemetry,
        owner: str,
        hooks: LetterHooks | None = None,
        plugins: Sequence[object] = (),
        drains: Sequence[Drain] = (),
        letter_store: LetterStore | None = None,
        tracer: Tracer | None = None,
        instance_id: str | None = None,
        drain_timeout: timedelta = timedelta(seconds=25),
    ) -> None:
        consume = settings.consume
        self._name = name
        self._consume = consume
        self._group = consume.group or name
        self._brokers = brokers
        self._plugins = (codec, *plugins, handler)
        self._chain = chain
        self._drains = drains
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._owner = owner
        self._letter_store = letter_store
        self._hooks = hooks or LetterHooks()
        self._handler_id = handler_id
        self._instance_id = instance_id
        self._drain_timeout = drain_timeout.total_seconds()
        self._is_stopping = False
        self._is_joined = False
        self._failure: BaseException | None = None
        self._changed = asyncio.Event()
        self._wants_rebuild = False
        self._outside: Stall | None = None
        self._cluster_id: str | None = None
        self._membership: Membership | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._admin: Admin | None = None

        context = HandlerContext(
            pipeline=name,
            logger=logger,
            connections=connections,
            is_stopping=lambda: self._is_stopping,
            deadline=settings.handler.timeout,
        )
        self._call = HandlerCall(
            handler=handler,
            codec=codec,
            context=context,
            executor=executor,
            tracing=Tracing(tracer=tracer, group=self._group),
        )
        self._processing = Processing(
            pipeline=name,
            settings=settings,
            call=self._call,
            classification=classification,
            chain=chain,
            make_letter=self._make_letter,
            clock=clock,
            random=random,
            telemetry=telemetry,
            resume=self._resume,
            fail=self._fail,
        )
        self._reporter = Reporter(pipeline=name, processing=self._processing, telemetry=telemetry)

    # -- PipelineRun -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """See `PipelineRun.run`. Raises PipelineStopped when a rule or a policy said `stop`, else what ended it."""
        self._telemetry.instruments.consumer.zero(self._name)
        opened: list[Opens] = []
        try:
            self._admin = self._brokers.admin()
            await self._chain.open()
            for plugin in self._plugins:
                if isinstance(plugin, Opens):
                    opened.append(plugin)
                    await plugin.open()
            self._call.opened()
            await self._work(self._admin)
        except asyncio.CancelledError:
            if self._membership is not None:
                await self._membership.discard(commit=_QUICK, leave=_QUICK)
            raise
        finally:
            self._is_stopping = True
            await self._close(opened)
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ask it to drain. Idempotent."""
        self._is_stopping = True
        self._changed.set()

    def health(self) -> Health:
        """How it is."""
        membership = self._membership
        return Health(
            is_ready=self._is_joined,
            stall=self._outside or self._reporter.stall(membership),
            detail={**self._reporter.detail(membership), "dead_letters": self._chain.status()},
        )

    # -- replays ---------------------------------------------------------------------------------------------------------

    def owned(self) -> Collection[TopicPartition]:
        """The partitions whose letters this replica may replay now."""
        return [] if self._membership is None or self._is_stopping else list(self._membership.partitions)

    async def replay(self, item: ReplayItem) -> None:
        """Run a claimed letter in its key's own lane; see `replay_in_place`."""
        partitions: dict[TopicPartition, AssignedPartition] = {}
        if self._membership is not None and not self._is_stopping:
            partitions = self._membership.partitions
        await replay_in_place(
            item,
            partitions=partitions,
            lanes=self._processing.lanes,
            breaker=self._processing.breaker,
            now=self._clock.monotonic(),
        )

    # -- one life after the other ----------------------------------------------------------------------------------------

    async def _work(self, admin: Admin) -> None:
        self._spawn(self._processing.letters.run(), f"{self._name}-letters")
        self._spawn(self._reporter.every(self._consume.commit_every.total_seconds()), f"{self._name}-report")
        replayer = self._replayer()
        self._leaving = {self._spawn(drain.run(), f"{self._name}-drain") for drain in self._drains}
        if replayer is not None:
            self._leaving.add(self._spawn(replayer.run(), f"{self._name}-replays"))
        starts = StartPositions(policy=self._consume.start, group=self._group, admin=admin)
        while not self._has_ended():
            membership = await self._join(admin, starts)
            if membership is None:
                break
            while not self._has_ended() and not self._wants_rebuild:
                await self._changed.wait()
                self._changed.clear()
            if self._has_ended():
                break
            self._wants_rebuild = False
            await membership.replace()
            self._membership = None
        for drain in self._drains:
            drain.stop()
        if replayer is not None:
            replayer.stop()
        if self._membership is not None:
            await self._membership.leave(budget=self._drain_timeout)
            self._membership = None

    def _has_ended(self) -> bool:
        return self._is_stopping or self._failure is not None

    async def _join(self, admin: Admin, starts: StartPositions) -> Membership | None:
        """A member of the group; None when the run is over before that. An outage is waited out, visibly."""
        failures = 0
        while not self._has_ended():
            membership = self._new_membership(admin, starts)
            self._membership = membership
            joining = asyncio.create_task(self._ask_and_join(admin, membership), name=f"{self._name}-join")
            try:
                await self._first_of(joining)
                if joining.done():
                    joining.result()
                    self._outside = None
                    self._is_joined = True
                    return membership
            except BrokerError as error:
                failures += 1
                self._outside = _stall_of(error)
                if self._outside is None:
                    await membership.discard()
                    self._membership = None
                    raise
            finally:
                if not joining.done():
                    joining.cancel()
                    await asyncio.wait({joining}, timeout=_CLOSE_DEADLINE)
            await membership.discard()
            self._membership = None
            await self._wait(CONNECT_BACKOFF.delay(max(1, failures), self._random))
        return None

    async def _ask_and_join(self, admin: Admin, membership: Membership) -> None:
        if self._cluster_id is None:
            try:
                async with asyncio.timeout(_ASK_DEADLINE):
                    self._cluster_id = await admin.cluster_id()
            except TimeoutError as error:
                raise BrokerUnreachable("the cluster does not say its id") from error
        await membership.join()

    def _new_membership(self, admin: Admin, starts: StartPositions) -> Membership:
        consume = self._consume
        port = self._brokers.consumer(
            topics=consume.topics,
            group=self._group,
            session_timeout=consume.session_timeout,
            rebalance_timeout=consume.rebalance_timeout,
            max_poll_interval=consume.max_poll_interval,
            instance_id=self._instance_id,
        )
        return Membership(
            pipeline=self._name,
            port=port,
            admin=admin,
            settings=consume,
            starts=starts,
            processing=self._processing,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
            fail=self._fail,
            rebuild=self._rebuild,
        )

    def _replayer(self) -> Replayer | None:
        if self._letter_store is None:
            return None
        return Replayer(
            pipeline=self._name,
            group=self._group,
            store=self._letter_store,
            owner=self._owner,
            partitions=self.owned,
            replay=self.replay,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
            mask=self._hooks.mask,
        )

    # -- the end ---------------------------------------------------------------------------------------------------------

    async def _close(self, opened: Sequence[Opens]) -> None:
        """Everything back, newest first, each within its deadline; leaves no task."""
        is_hurried = (task := asyncio.current_task()) is not None and task.cancelling() > 0
        if self._leaving and not is_hurried:
            # Drains and replays give back what they hold; they were told to stop.
            await asyncio.wait(self._leaving, timeout=_CLOSE_DEADLINE)
        for running in self._tasks:
            running.cancel()
        await self._processing.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        self._reporter.report()
        closings = [plugin.close for plugin in reversed(opened)]
        closings.append(self._chain.close)
        if self._admin is not None:
            closings.append(self._admin.close)
        for close in closings:
            with contextlib.suppress(Exception):  # the others are closed all the same
                async with asyncio.timeout(_QUICK if is_hurried else _CLOSE_DEADLINE):
                    await close()

    # -- small parts -----------------------------------------------------------------------------------------------------

    def _make_letter(self, record: RawRecord, facts: FailureFacts) -> Letter:
        assert self._cluster_id is not None, "records come only after the cluster said its id"
        origin = Origin(cluster_id=self._cluster_id, pipeline=self._name, group=self._group, handler=self._handler_id)
        return make_letter(record, facts, origin, self._hooks)

    def _resume(self, partition: AssignedPartition) -> None:
        if self._membership is not None:
            self._membership.poller.resume(partition)

    def _rebuild(self) -> None:
        self._wants_rebuild = True
        self._changed.set()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._changed.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _first_of(self, joining: asyncio.Task[None]) -> None:
        changed = asyncio.create_task(self._changed.wait(), name=f"{self._name}-changed")
        try:
            while not joining.done() and not self._has_ended():
                await asyncio.wait({joining, changed}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()

    async def _wait(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has_ended():
                    await self._changed.wait()
                    self._changed.clear()


def _stall_of(error: BrokerError) -> Stall | None:
    """The stall that an error while joining means; None when waiting does not help."""
    if isinstance(error, TopicError):
        return Stall(reason="topic_failed", message=error.told)
    if error.retriable:
        return Stall(reason="broker_unreachable", message=error.told)
    return None

"""A relay from one start to its end: the rows of an outbox table become records of topics, in order and once each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from outboxd.errors import (
    BrokerError,
    BrokerUnreachable,
    DatabaseError,
    DatabaseUnreachable,
    OutboxdError,
    PluginBroken,
    SchemaBehind,
)
from outboxd.pipeline.relay.actions import ActionPlans, ActionStep
from outboxd.pipeline.relay.context import ProducerFactory, PublishObserver, RelayContext
from outboxd.pipeline.relay.dependencies import Dependency, database_call, told
from outboxd.pipeline.relay.marking import Marker
from outboxd.pipeline.relay.ownership import Ownership
from outboxd.pipeline.relay.reading import Reader
from outboxd.pipeline.relay.topics import Topics
from outboxd.pipeline.relay.window import Window
from outboxd.pipeline.run import Health, Stall
from outboxd.ports import RelayRegistration
from outboxd.telemetry.relay import RelayMeasured

if TYPE_CHECKING:
    from outboxd.api import Connections, Logger
    from outboxd.pipeline.relay.settings import RelaySettings
    from outboxd.ports import Admin, Clock, Executor, LeaseStore, OutboxStore, Random
    from outboxd.telemetry.emitter import Telemetry

__all__ = ["ActionStep", "RelayRun"]

_PAGE_ROWS: Final = 4_000
_PAGE_BYTES: Final = 8 << 20
_WINDOW_PAGES: Final = 4
_MEASURE_EVERY: Final = 5.0
_CLOSE_DEADLINE: Final = 5.0
_ASK_DEADLINE: Final = 10.0
_SHOWN_BLOCKS: Final = 20


class _Opens(Protocol):
    async def open(self) -> None: ...

    async def close(self) -> None: ...


class RelayRun:
    """A `PipelineRun` that relays.

    ``actions`` are each topic's `after_publish` in order, made but not opened; the run opens and closes them.
    ``owner`` names this start of this replica (daemon name and random suffix: never the same twice, or an orphan of
    a crashed start would look alive). ``on_published`` is told of each acknowledged batch and must not raise.
    """

    def __init__(
        self,
        *,
        name: str,
        settings: RelaySettings,
        outbox: OutboxStore,
        leases: LeaseStore,
        brokers: ProducerFactory,
        admin: Admin,
        clock: Clock,
        random: Random,
        executor: Executor,
        telemetry: Telemetry,
        logger: Logger,
        connections: Connections,
        owner: str,
        actions: Mapping[str, Sequence[ActionStep]] | None = None,
        on_published: PublishObserver | None = None,
    ) -> None:
        self._name = name
        self._settings = settings
        self._outbox = outbox
        self._leases = leases
        self._brokers = brokers
        self._admin = admin
        self._clock = clock
        self._random = random
        self._telemetry = telemetry
        self._owner = owner
        self._on_published = on_published
        self._database = Dependency(pipeline=name, reason="database_unreachable", clock=clock, telemetry=telemetry)
        self._marks = Dependency(pipeline=name, reason="mark_refused", clock=clock, telemetry=telemetry)
        self._broker = Dependency(pipeline=name, reason="broker_unreachable", clock=clock, telemetry=telemetry)
        self._stopping = asyncio.Event()
        self._actions = actions or {}
        self._plans = ActionPlans(
            self._actions,
            pipeline=name,
            logger=logger,
            connections=connections,
            executor=executor,
            is_stopping=self._stopping.is_set,
        )
        self._topics = Topics(
            pipeline=name,
            admin=admin,
            clock=clock,
            telemetry=telemetry,
            broker=self._broker,
            listed=frozenset(settings.publish.topics or ()),
            with_actions=self._plans.topics,
        )
        self._window = Window(max_rows=_WINDOW_PAGES * _PAGE_ROWS, max_bytes=_WINDOW_PAGES * _PAGE_BYTES)
        self._context: RelayContext | None = None
        self._ownership: Ownership | None = None
        self._schema: SchemaBehind | None = None
        self._oldest: float | None = None
        self._was_ready = False

    # -- PipelineRun

    async def run(self) -> None:
        """Relay until `stop`: then let batches on their way end, mark them, release the shards, and return.

        Outages and a schema that is behind do not end it. Raises PluginBroken, ConfigurationError, or what nobody
        expected; cancelled, it gives its producers up and marks nothing that was not acknowledged.
        """
        self._telemetry.instruments.relay.zero(self._name)
        try:
            await self._open_actions()
            registration = await self._register()
            if registration is not None:
                await self._work(registration)
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            await self._close_actions()

    def stop(self) -> None:
        """Ask it to drain."""
        self._stopping.set()
        if self._ownership is not None:
            self._ownership.stop()

    def health(self) -> Health:
        """How it is, and what it is doing."""
        return Health(is_ready=self._is_ready(), stall=self._stall(), detail=self._detail())

    # -- start

    async def _register(self) -> RelayRegistration | None:
        """The relay's identity; waits for the database and for its schema. None when stopped meanwhile."""
        while not self._stopping.is_set():
            try:
                with self._database.watched():
                    registration = await database_call(
                        self._outbox.register(self._settings.publish.shards), self._statement_seconds
                    )
            except SchemaBehind as error:
                self._schema = error
                self._database.failed(error)
            except DatabaseUnreachable as error:
                self._schema = None
                self._database.failed(error)
            else:
                self._schema = None
                self._database.answered()
                return registration
            waiting = {
                asyncio.create_task(self._database.wait(), name=f"{self._name}: wait for the database"),
                asyncio.create_task(self._wait_for_stop(), name=f"{self._name}: wait for stop"),
            }
            try:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
        return None

    async def _wait_for_stop(self) -> None:
        await self._stopping.wait()

    @property
    def _statement_seconds(self) -> float:
        return 60.0

    async def _work(self, registration: RelayRegistration) -> None:
        context = self._context = self._make_context(registration)
        marker = Marker(context)
        ownership = self._ownership = Ownership(context, marker, shards=registration.shards)
        reader = Reader(
            context,
            lambda: ownership.shards,
            poll_max=self._settings.outbox.poll_max,
            page_rows=_PAGE_ROWS,
            page_bytes=_PAGE_BYTES,
        )
        self._connect_topics(ownership)
        async with asyncio.TaskGroup() as group:
            parts = {
                "reader": reader.run(),
                "marker": marker.run(),
                "topics": self._topics.run(),
                "gauges": self._measure(),
            }
            tasks = [group.create_task(part, name=f"{self._name}: {title}") for title, part in parts.items()]
            if self._stopping.is_set():
                ownership.stop()
            await ownership.run()
            for task in tasks:
                task.cancel()

    def _make_context(self, registration: RelayRegistration) -> RelayContext:
        publish = self._settings.publish
        return RelayContext(
            pipeline=self._name,
            relay_id=registration.relay_id,
            owner=self._owner,
            lease_time=self._settings.outbox.lease,
            send_deadline=publish.send_deadline,
            compression=None if publish.compression == "none" else publish.compression,
            outbox=self._outbox,
            leases=self._leases,
            brokers=self._brokers,
            admin=self._admin,
            clock=self._clock,
            random=self._random,
            telemetry=self._telemetry,
            database=self._database,
            marks=self._marks,
            broker=self._broker,
            topics=self._topics,
            plans=self._plans,
            window=self._window,
            on_published=self._on_published,
        )

    def _connect_topics(self, ownership: Ownership) -> None:
        def paused(topic: str) -> None:
            for shard in ownership.shards:
                shard.holding.topic_paused(topic)

        def resumed(topic: str) -> None:
            for shard in ownership.shards:
                shard.topic_resumed(topic)
            self._window.wake.set()

        self._topics.on_pause = paused
        self._topics.on_resume = resumed
        self._topics.is_busy = lambda topic: any(shard.holding.is_busy(topic) for shard in ownership.shards)

    async def _open_actions(self) -> None:
        for step in self._steps():
            try:
                await cast("_Opens", step.action).open()
            except OutboxdError:
                raise
            except Exception as error:
                raise PluginBroken(
                    f"pipeline {self._name}: the action {step.name} cannot be opened: {error}"
                ) from error

    async def _close_actions(self) -> None:
        for step in self._steps():
            try:
                async with asyncio.timeout(_CLOSE_DEADLINE):
                    await cast("_Opens", step.action).close()
            except Exception as error:  # noqa: BLE001  # closing is best effort: the run's own outcome stands
                self._plans.close_failed(step, error)

    def _steps(self) -> list[ActionStep]:
        """Each plugin once."""
        return list({id(step.action): step for steps in self._actions.values() for step in steps}.values())

    # -- state

    async def _measure(self) -> None:
        """Ask the database for the oldest pending row's age, from every replica, and set the gauges."""
        while True:
            try:
                self._oldest = await database_call(self._outbox.oldest_pending(), self._statement_seconds)
            except DatabaseError as error:
                self._database.failed(error)
                await self._database.wait()
            await self._ask_broker()
            detail = self._detail()
            self._telemetry.emit(
                RelayMeasured(
                    pipeline=self._name,
                    shards=len(cast("list[int]", detail["shards_owned"])),
                    in_flight=self._window.rows,
                    blocked=cast("int", detail["keys_blocked"]),
                    paused=len(self._topics.paused),
                    oldest=self._oldest,
                )
            )
            await self._clock.sleep(_MEASURE_EVERY)

    async def _ask_broker(self) -> None:
        """After a failure ask the broker for a sign of life: with nothing to send, nobody else would (invariant 12)."""
        if self._broker.trouble() is None:
            return
        await self._broker.wait()
        try:
            async with asyncio.timeout(_ASK_DEADLINE):
                await self._admin.cluster_id()
        except (BrokerError, TimeoutError) as error:
            self._broker.failed(error if isinstance(error, BrokerError) else BrokerUnreachable("no answer in time"))
        else:
            self._broker.answered()

    def _is_ready(self) -> bool:
        ownership = self._ownership
        if not self._was_ready and ownership is not None and ownership.has_looked:
            self._was_ready = all(shard.was_open for shard in ownership.shards)
        return self._was_ready

    def _stall(self) -> Stall | None:
        if self._schema is not None:
            return Stall(reason="schema_behind", message=told(self._schema))
        for dependency in (self._database, self._marks):
            if (trouble := dependency.trouble()) is not None:
                return Stall(reason=dependency.reason, message=trouble)
        return self._publishing_stall()

    def _publishing_stall(self) -> Stall | None:
        """Why rows do not go out. A replica without shards sends none: what it last heard of the broker is old news."""
        if self._ownership is None or not self._ownership.shards:
            return None
        if (trouble := self._broker.trouble()) is not None:
            return Stall(reason=self._broker.reason, message=trouble)
        for topic, paused in self._topics.paused.items():
            return Stall(reason="topic_failed", message=f"{topic}: {paused.error}")
        for shard in self._ownership.shards:
            for block in shard.holding.blocks:
                return Stall(reason="keys_blocked", message=f"row {block.row_id} of {block.key[0]}: {block.error}")
        return None

    def _detail(self) -> dict[str, object]:
        shards = self._ownership.shards if self._ownership is not None else ()
        blocks = [block for shard in shards for block in shard.holding.blocks]
        books = self._context.books if self._context is not None else None
        return {
            "shards_owned": sorted(shard.number for shard in shards),
            "in_flight": self._window.rows,
            "in_flight_bytes": self._window.bytes,
            "keys_blocked": len(blocks),
            "blocked": [
                {"topic": block.key[0], "row_id": block.row_id, "error": block.error, "attempts": block.attempts}
                for block in blocks[:_SHOWN_BLOCKS]
            ],
            "paused_topics": {
                topic: {"error": paused.error, "since": paused.at.isoformat(), "attempts": paused.attempts}
                for topic, paused in self._topics.paused.items()
            },
            "oldest_pending_seconds": self._oldest,
            "published": 0 if books is None else books.published,
            "possible_duplicates": 0 if books is None else books.possible_duplicates,
            "last_publish": None if books is None or books.last_publish is None else books.last_publish.isoformat(),
        }


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group, however deep: the one that ended the run."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error

"""What runs after a publish: the broker's answers are stored, then each key's actions run in row order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Final
from uuid import UUID

from outboxd.api import Action, ActionContext, Connections, Logger, Published, TransactionalAction
from outboxd.errors import ActionTimeout, ConfigurationError, DatabaseError, LeaseLost
from outboxd.ids import idempotency_id
from outboxd.pipeline.relay.blocks import KeyId, key_id
from outboxd.pipeline.relay.dependencies import database_call
from outboxd.pipeline.relay.sent import SentBatch
from outboxd.ports import Executor, SentRow, Statement
from outboxd.records import OutboxRow, SentPosition
from outboxd.telemetry.relay import ActionFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from outboxd.pipeline.relay.shard import Shard

__all__ = ["ActionPlans", "ActionRunner", "ActionStep"]

_WORKERS: Final = 16
"""Keys of one shard whose actions run at the same time."""
_STAGE_DEADLINE: Final = 60.0

Delivered = tuple[OutboxRow, SentPosition]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionStep:
    """One action of a topic, as configured: its name for people, the plugin, and what one call may take."""

    name: str
    action: Action | TransactionalAction
    deadline: timedelta = timedelta(seconds=30)


class ActionPlans:
    """The actions of each topic; those that commit with the mark stand last. Raises ConfigurationError otherwise."""

    def __init__(
        self,
        steps: Mapping[str, Sequence[ActionStep]],
        *,
        pipeline: str,
        logger: Logger,
        connections: Connections,
        executor: Executor,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._steps = {topic: tuple(planned) for topic, planned in steps.items() if planned}
        self._pipeline = pipeline
        self._logger = logger
        self._connections = connections
        self._executor = executor
        self._is_stopping = is_stopping
        for topic, planned in self._steps.items():
            kinds = [isinstance(step.action, TransactionalAction) for step in planned]
            if kinds != sorted(kinds):
                raise ConfigurationError(
                    f"pipeline {pipeline}: an action of {topic} stands behind one that commits with the mark",
                    suggestion="put the actions on the outbox's own connection (type: sql) last in after_publish",
                )

    @property
    def topics(self) -> frozenset[str]:
        """The topics that have actions."""
        return frozenset(self._steps)

    def steps(self, topic: str) -> Sequence[ActionStep]:
        """The topic's actions in order."""
        return self._steps.get(topic, ())

    def is_mixed(self, topic: str) -> bool:
        """Whether the topic has actions of both kinds."""
        return len({isinstance(step.action, TransactionalAction) for step in self.steps(topic)}) > 1

    async def call(self, step: ActionStep, published: Published) -> None:
        """Run one action within its deadline. Raises ActionTimeout, or what the action raises."""
        action = step.action
        assert isinstance(action, Action)
        context = ActionContext(
            pipeline=self._pipeline,
            logger=self._logger,
            connections=self._connections,
            is_stopping=self._is_stopping,
            deadline=step.deadline,
        )
        seconds = step.deadline.total_seconds()
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                if iscoroutinefunction(action.act):
                    await action.act(published, context)
                    return
                answer = await self._executor.run(action.act, published, context)
                if isawaitable(answer):
                    await answer
        except TimeoutError as error:
            if not limit.expired():
                raise  # the action's own
            raise ActionTimeout(f"the action {step.name} did not return within {seconds:g} s") from error

    def close_failed(self, step: ActionStep, error: BaseException) -> None:
        """An action could not be closed: nothing depends on it any more."""
        self._logger.warning("action_close_failed", pipeline=self._pipeline, action=step.name, error=repr(error))

    @staticmethod
    def statement(step: ActionStep, published: Published) -> Statement:
        """The statement of an action that commits with the mark."""
        assert isinstance(step.action, TransactionalAction)
        sql, arguments = step.action.statement(published)
        return Statement(sql=sql, arguments=arguments)


class ActionRunner:
    """The actions of one shard's rows. A failing one blocks its key and nothing else; rows are never sent again."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._context = shard.context
        self._unstaged: list[tuple[SentBatch, Sequence[Delivered]]] = []
        self._staging = asyncio.Event()
        self._staged = asyncio.Event()
        self._staged.set()
        self._queues: dict[KeyId, deque[Delivered]] = {}
        self._ready: deque[KeyId] = deque()
        self._workers = 0

    def submit(self, batch: SentBatch, delivered: Sequence[Delivered]) -> None:
        """Rows that the broker acknowledged and whose actions are all to be run, once the answers are stored."""
        self._unstaged.append((batch, delivered))
        self._staging.set()
        self._staged.clear()

    async def all_staged(self) -> None:
        """Wait until every answer is stored and its row has its place in the queue of its key; at once when lost."""
        await self._staged.wait()

    def lost(self) -> None:
        """Nobody needs to wait any more."""
        self._staged.set()

    def resume(self, row: OutboxRow, sent: SentPosition) -> None:
        """A row that was published before; its actions go on where they stopped."""
        shard = self._shard
        if shard.holding.blocks and not shard.holding.blocks.may_pass(row):
            shard.holding.drop([row])
            return
        key = key_id(row)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            self._ready.append(key)
        queue.append((row, sent))
        if self._ready and self._workers < _WORKERS:
            self._workers += 1
            shard.spawn(self._work(), f"actions {self._workers}")

    def withdraw(self, key: KeyId, row_id: int) -> list[OutboxRow]:
        """Take the rows of the key behind this one out again, but for one whose action is running."""
        queue = self._queues.get(key)
        if queue is None:
            return []
        is_running = key not in self._ready
        withdrawn: list[OutboxRow] = []
        while len(queue) > is_running and queue[-1][0].row_id > row_id:
            withdrawn.append(queue.pop()[0])
        if not queue:
            del self._queues[key]
            self._ready.remove(key)
        return withdrawn

    def withdraw_waiting(self) -> list[OutboxRow]:
        """Take out every row whose actions have not begun: they are staged, and go on with the next owner."""
        withdrawn: list[OutboxRow] = []
        for key in self._ready:
            withdrawn.extend(row for row, _ in self._queues.pop(key))
        self._ready.clear()
        for queue in self._queues.values():
            while len(queue) > 1:
                withdrawn.append(queue.pop()[0])
        return withdrawn

    async def stage(self) -> None:
        """Store answers before any action runs, until cancelled or the lease is lost."""
        context, shard = self._context, self._shard
        while True:
            await self._staging.wait()
            self._staging.clear()
            work, self._unstaged = self._unstaged, []
            rows = [SentRow(row_id=row.row_id, sent=sent) for _, delivered in work for row, sent in delivered]
            while True:
                await context.database.wait()
                try:
                    with context.database.watched():
                        await database_call(context.outbox.stage(shard.token, rows), _STAGE_DEADLINE)
                except LeaseLost:
                    shard.lose()
                    return
                except DatabaseError as error:
                    context.database.failed(error)  # repeated: storing the same answer twice changes nothing
                else:
                    context.database.answered()
                    break
            for batch, delivered in work:
                batch.is_settled = True
                for row, sent in delivered:
                    if shard.is_draining:
                        shard.holding.drop([row])
                    else:
                        self.resume(row, sent)
            if not self._unstaged:
                self._staged.set()

    async def _work(self) -> None:
        try:
            while self._ready and not self._shard.is_lost:
                key = self._ready.popleft()
                row, sent = self._queues[key][0]
                await self._act(row, sent)
                queue = self._queues[key]
                queue.popleft()
                if queue:
                    self._ready.append(key)
                else:
                    del self._queues[key]
        finally:
            self._workers -= 1

    async def _act(self, row: OutboxRow, sent: SentPosition) -> None:
        context, shard = self._context, self._shard
        index, name = sent.next_action, ""
        statements: list[Statement] = []
        try:
            for index, step in enumerate(context.plans.steps(row.topic)):
                if index < sent.next_action:
                    continue
                name = step.name
                published = _published(context.relay_id, row, sent, index)
                if isinstance(step.action, TransactionalAction):
                    statements.append(context.plans.statement(step, published))
                else:
                    await context.plans.call(step, published)
        except Exception as error:  # noqa: BLE001  # whatever a plugin raises is its row's failure, and only that
            context.emit(
                ActionFailed(
                    pipeline=context.pipeline, topic=row.topic, action=name, row_id=row.row_id, error=repr(error)
                )
            )
            if index > sent.next_action and not statements:
                await self._store_progress(row, sent, index)
            shard.holding.block(row, error)
        else:
            committed = shard.holding.acted(row, statements)
            if committed is not None and context.plans.is_mixed(row.topic):
                await committed.wait()  # an action of the key's next row must not run before this row's statement

    async def _store_progress(self, row: OutboxRow, sent: SentPosition, index: int) -> None:
        """Best effort: an action that is run again gets the same idempotency id."""
        context, shard = self._context, self._shard
        reached = SentPosition(topic=sent.topic, partition=sent.partition, offset=sent.offset, next_action=index)
        try:
            await database_call(
                context.outbox.stage(shard.token, [SentRow(row_id=row.row_id, sent=reached)]), _STAGE_DEADLINE
            )
        except LeaseLost:
            shard.lose()
        except DatabaseError as error:
            context.database.failed(error)


def _published(relay_id: UUID, row: OutboxRow, sent: SentPosition, index: int) -> Published:
    return Published(
        topic=sent.topic,
        partition=sent.partition,
        offset=sent.offset,
        key=row.key,
        value=row.value,
        headers=row.headers,
        timestamp=-1 if row.timestamp is None else row.timestamp,
        row_id=row.row_id,
        idempotency_id=idempotency_id(relay_id, row.row_id, index),
    )

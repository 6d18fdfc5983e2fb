"""Marks rows that are done: one call at a time, each for everything that became done meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from outboxd.errors import DatabaseError, DatabaseUnreachable, StatementFailed
from outboxd.pipeline.relay.dependencies import database_call
from outboxd.ports import Mark, Statement
from outboxd.records import OutboxRow
from outboxd.telemetry.relay import RowsMarked

if TYPE_CHECKING:
    from outboxd.pipeline.relay.context import RelayContext
    from outboxd.pipeline.relay.sent import SentBatch
    from outboxd.pipeline.relay.shard import Shard

__all__ = ["Marker"]

_DEADLINE: Final = 60.0
_STATEMENTS_AT_ONCE: Final = 500


class _Done:
    """Rows to be marked with nothing else; ``batch`` is settled then."""

    __slots__ = ("batch", "row_ids", "size")

    def __init__(self, row_ids: Sequence[int], size: int, batch: SentBatch | None) -> None:
        self.row_ids = row_ids
        self.size = size
        self.batch = batch


class _Statements:
    """A row whose mark commits together with statements; ``resolved`` is set when it did, or did not."""

    __slots__ = ("resolved", "row", "shard", "statements")

    def __init__(self, shard: Shard, row: OutboxRow, statements: Sequence[Statement]) -> None:
        self.shard = shard
        self.row = row
        self.statements = statements
        self.resolved = asyncio.Event()


class Marker:
    """The only writer of marks in a relay. A row comes here after its acknowledgement and its actions (invariant 1)."""

    def __init__(self, context: RelayContext) -> None:
        self._context = context
        self._done: dict[Shard, list[_Done]] = {}
        self._statements: list[_Statements] = []
        self._wake = asyncio.Event()

    def add(self, shard: Shard, row_ids: Sequence[int], size: int, batch: SentBatch | None = None) -> None:
        """These rows of the shard are done."""
        self._done.setdefault(shard, []).append(_Done(row_ids, size, batch))
        self._wake.set()

    def add_statements(self, shard: Shard, row: OutboxRow, statements: Sequence[Statement]) -> asyncio.Event:
        """The row is done when these statements commit with its mark; the event is set when that is decided."""
        item = _Statements(shard, row, statements)
        self._statements.append(item)
        self._wake.set()
        return item.resolved

    async def run(self) -> None:
        """Mark until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            done, self._done = self._done, {}
            if done:
                await self._mark(done)
            items, self._statements = self._statements, []
            for start in range(0, len(items), _STATEMENTS_AT_ONCE):
                await self._mark_with_statements(items[start : start + _STATEMENTS_AT_ONCE])

    async def _mark(self, done: dict[Shard, list[_Done]]) -> None:
        """Repeat until the answer is known: a mark that was lost on its way back is no reason to send rows again."""
        context = self._context
        while done := {shard: items for shard, items in done.items() if not shard.is_lost}:
            await context.database.wait()
            await context.marks.wait()
            marks = [
                Mark(lease=shard.token, row_ids=[row_id for item in items for row_id in item.row_ids])
                for shard, items in done.items()
            ]
            try:
                lost = await self._call(marks)
            except DatabaseError as error:
                self._failed(error)
                continue
            self._answered()
            for shard, items in done.items():
                if shard.token.name in lost:
                    shard.lose()
                    continue
                for item in items:
                    if item.batch is not None:
                        item.batch.is_settled = True
                    shard.holding.settled(item.row_ids, item.size)
            context.emit(RowsMarked(pipeline=context.pipeline, count=sum(len(mark.row_ids) for mark in marks)))
            return

    async def _mark_with_statements(self, items: list[_Statements]) -> None:
        await self._context.database.wait()
        await self._context.marks.wait()
        items = self._passing(items)  # after the waits: a shard may be lost by then
        if not items:
            return
        try:
            await self._commit(items)
        except StatementFailed:
            # One bad row stops nobody else.
            for item in items:
                for single in self._passing([item]):
                    await self._mark_single(single)
        except DatabaseError as error:
            self._unknown(items, error)

    async def _mark_single(self, item: _Statements) -> None:
        try:
            await self._commit([item])
        except StatementFailed as error:
            item.shard.holding.block(item.row, error)
            item.resolved.set()
        except DatabaseError as error:
            self._unknown([item], error)

    async def _commit(self, items: list[_Statements]) -> None:
        marks = [Mark(lease=item.shard.token, row_ids=[item.row.row_id], statements=item.statements) for item in items]
        lost = await self._call(marks)
        self._answered()
        for item in items:
            if item.shard.token.name in lost:
                item.shard.lose()
            else:
                item.shard.holding.statements_committed(item.row)
            item.resolved.set()
        self._context.emit(RowsMarked(pipeline=self._context.pipeline, count=len(items)))

    def _passing(self, items: list[_Statements]) -> list[_Statements]:
        """Those that may go on; the others' keys were blocked by an earlier row, or their shard is lost."""
        passing = []
        for item in items:
            shard = item.shard
            if shard.is_lost:
                item.resolved.set()
            elif shard.holding.blocks and not shard.holding.blocks.may_pass(item.row):
                shard.holding.drop([item.row])
                item.resolved.set()
            else:
                passing.append(item)
        return passing

    def _unknown(self, items: list[_Statements], error: DatabaseError) -> None:
        """The statements may have been committed: only the table can tell, so the rows are read again.

        Those that are still pending come with their stage and are not published again. Until then their keys wait.
        """
        self._failed(error)
        for item in items:
            if not item.shard.is_lost:
                item.shard.holding.hold_back(item.row, error)
            item.resolved.set()

    def _failed(self, error: DatabaseError) -> None:
        if isinstance(error, DatabaseUnreachable):
            self._context.database.failed(error)
        else:
            # Not an outage: everybody else's calls go on to succeed, and must not hide it.
            self._context.marks.failed(error)

    def _answered(self) -> None:
        self._context.database.answered()
        self._context.marks.answered()

    async def _call(self, marks: Sequence[Mark]) -> frozenset[str]:
        with self._context.database.watched():
            return await database_call(self._context.outbox.mark(marks), _DEADLINE)

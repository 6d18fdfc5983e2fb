"""Services that write outbox rows in business transactions, and know what became of each row."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from random import Random
from types import TracebackType
from typing import Final, Self

from outboxd.errors import DatabaseError
from outboxd.postgres.connector import Connector, Session
from outboxd.testing.chaos.books import WrittenRow

__all__ = ["Fate", "Ledger", "Writers"]

_DELAYS: Final = (0.0, 0.0, 0.0, 0.001, 0.02, 0.2)  # seconds between the last row and COMMIT
_AFTER_FAILURE: Final = 0.2
_STOP_DEADLINE: Final = 30.0
_HEADERS: Final = '[["origin", "chaos"], ["twice", "1"], ["twice", null]]'


class Fate(Enum):
    """What a writer knows of a row."""

    COMMITTED = "committed"
    """The database said so."""
    ROLLED_BACK = "rolled back"
    """COMMIT was never sent, or refused."""
    UNKNOWN = "unknown"
    """The answer to COMMIT was lost."""


class Ledger:
    """The rows of all writers and their fates."""

    def __init__(self) -> None:
        self.rows: dict[int, WrittenRow] = {}
        self.fates: dict[int, Fate] = {}
        self.last_error: str | None = None
        """The latest failure of a transaction, for a run in which nothing was committed."""

    def note(self, rows: Mapping[int, WrittenRow], fate: Fate) -> None:
        """These rows had this fate."""
        self.rows.update(rows)
        self.fates.update(dict.fromkeys(rows, fate))

    def of(self, fate: Fate) -> list[WrittenRow]:
        """The rows with this fate, by id."""
        return [self.rows[row_id] for row_id in sorted(self.fates) if self.fates[row_id] is fate]

    def __str__(self) -> str:
        counts = Counter(self.fates.values())
        return ", ".join(f"{counts[fate]} {fate.value}" for fate in Fate)


class _RolledBack(Exception):
    """The business said no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Business:
    """What all writers share."""

    dsn: str
    topic: str
    keys: Sequence[str]
    rollbacks: float
    pause: float
    ledger: Ledger
    stopping: asyncio.Event


class Writers:
    """Many connections, each writing one business transaction after the other until the block ends.

        async with Writers(dsn=dsn, topic="orders", seed=7) as writers:
            ...
        print(writers.ledger)

    A transaction locks its key's row (so that within a key ids commit in order), enqueues one to three rows of it with
    `outboxd.enqueue` and writes each down in `outboxd_chaos.written`; then it waits a little (across keys ids commit
    out of order) and commits, or now and then rolls back. The schema must have been migrated; `Books.create` makes the
    other tables. Servers may go and come back meanwhile.
    """

    def __init__(
        self,
        *,
        dsn: str,
        topic: str,
        seed: int,
        keys: int = 50,
        connections: int = 12,
        rollbacks: float = 0.05,
        pause: float = 0.01,
    ) -> None:
        """``rollbacks`` is their share; ``pause`` the longest wait between two transactions, in seconds."""
        self.ledger = Ledger()
        self._business = _Business(
            dsn=dsn,
            topic=topic,
            keys=[f"{topic}-{number}" for number in range(keys)],
            rollbacks=rollbacks,
            pause=pause,
            ledger=self.ledger,
            stopping=asyncio.Event(),
        )
        self._seeds = [f"{seed}/{number}" for number in range(connections)]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._make_accounts()
        self._tasks = [
            asyncio.create_task(_Writer(self._business, seed).run(), name=f"chaos: writer {seed}")
            for seed in self._seeds
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        """End after each one's current transaction. Raises what a writer ended with; harmless when repeated."""
        self._business.stopping.set()
        tasks, self._tasks = self._tasks, []
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=_STOP_DEADLINE)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def _make_accounts(self) -> None:
        connector = Connector(name="chaos writers", dsn=self._business.dsn, pool_max_size=1)
        await connector.open()
        try:
            await connector.execute(
                "insert into outboxd_chaos.account select unnest($1::text[]) on conflict do nothing",
                self._business.keys,
            )
        finally:
            await connector.close()


class _Writer:
    """One connection."""

    def __init__(self, business: _Business, seed: str) -> None:
        self._business = business
        self._random = Random(seed)
        self._name = seed
        self._count = 0

    async def run(self) -> None:
        connector = Connector(
            name=f"chaos writer {self._name}",
            dsn=self._business.dsn,
            pool_max_size=1,
            statement_timeout=timedelta(seconds=10),
            connect_timeout=timedelta(seconds=3),
            close_timeout=timedelta(seconds=1),
        )
        await connector.open()
        try:
            while not self._business.stopping.is_set():
                await self._transact(connector)
                await asyncio.sleep(self._random.random() * self._business.pause)
        finally:
            await connector.close()

    async def _transact(self, connector: Connector) -> None:
        transaction = _Transaction(self._business, self._random, f"{self._name}/{self._count}")
        self._count += 1
        ledger = self._business.ledger
        try:
            await connector.in_transaction(transaction.work)
        except _RolledBack:
            ledger.note(transaction.rows, Fate.ROLLED_BACK)
        except DatabaseError as error:
            ledger.note(transaction.rows, transaction.fate_without_answer)
            ledger.last_error = str(error)
            await asyncio.sleep(_AFTER_FAILURE)
        except BaseException:
            ledger.note(transaction.rows, transaction.fate_without_answer)
            raise
        else:
            ledger.note(transaction.rows, Fate.COMMITTED)


class _Transaction:
    """What one transaction does, all of it drawn before it begins."""

    def __init__(self, business: _Business, random: Random, name: str) -> None:
        self.rows: dict[int, WrittenRow] = {}
        self._is_complete = False  # only COMMIT is left
        self._business = business
        self._key = random.choice(business.keys)
        self._payloads = [f"{name}/{number} " + "x" * random.randrange(400) for number in range(random.randint(1, 3))]
        self._delay = random.choice(_DELAYS)
        self._is_wanted = random.random() >= business.rollbacks

    @property
    def fate_without_answer(self) -> Fate:
        """What may be said of the rows after an error."""
        return Fate.UNKNOWN if self._is_complete else Fate.ROLLED_BACK

    async def work(self, session: Session) -> None:
        # Called again after the server rolled the first run back: its ids are gone for good.
        self._business.ledger.note(self.rows, Fate.ROLLED_BACK)
        self.rows, self._is_complete = {}, False
        await session.execute("select from outboxd_chaos.account where key = $1 for update", self._key)
        for payload in self._payloads:
            row_id = await session.fetchval(
                "select outboxd.enqueue($1, $2, $3::text, $4::jsonb)",
                self._business.topic,
                self._key,
                payload,
                _HEADERS,
            )
            row = WrittenRow(row_id=row_id, topic=self._business.topic, key=self._key, payload=payload)
            self.rows[row_id] = row
            await session.execute(
                "insert into outboxd_chaos.written values ($1, $2, $3, $4)", row_id, row.topic, row.key, row.payload
            )
        await asyncio.sleep(self._delay)
        if not self._is_wanted:
            raise _RolledBack
        self._is_complete = True

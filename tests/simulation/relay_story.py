"""Relays under faults: replicas with leases over shards, writers that commit late, topics that come and go, actions that fail."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from outboxd.api import Action, Connections, TransactionalAction
from outboxd.ids import HEADER_ROW_ID, parse_row_identity
from outboxd.pipeline.relay import topics as topics_module
from outboxd.pipeline.relay.relay import ActionStep, RelayRun
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.ports import Statement
from outboxd.records import Headers, Published, RawRecord
from outboxd.testing.fakes.clock import InlineExecutor, SeededRandom
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from outboxd.testing.fakes.lease import FakeLeases
from outboxd.testing.fakes.outbox import FakeOutbox
from tests.simulation.network import Network
from tests.simulation.process import Process, ProcessClock
from tests.simulation.story import Quiet, Replica, Run, Story, Violation

__all__ = ["RelayStory"]

_PLAIN, _ORDERS, _LEDGER, _MIXED, _LATER = "plain", "orders", "ledger", "mixed", "later"
_POISON: Final = b"poison "


class _Calls:
    """An action that tells a service of each row; sometimes the service says no."""

    def __init__(self, story: RelayStory, index: int) -> None:
        self._story = story
        self._index = index

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    async def act(self, published: Published, context: object) -> None:
        """Tell the service."""
        story = self._story
        await story.service.around("act", lambda: story.acted(published, self._index))


class _Books:
    """An action that commits with the mark."""

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""

    def statement(self, published: Published) -> tuple[str, Sequence[object]]:
        """One line in the ledger."""
        return "insert into ledger values ($1)", [published.row_id]


class RelayStory(Story):
    """Rows whose value begins with their id, one writer per key, so that within a key ids are committed in order."""

    shows = ("database",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self.chance
        database = self.network("database", deadline=20.0)
        self.leases = FakeLeases(self.database_clock, database)
        self.outbox = FakeOutbox(self.leases.holds, self.database_clock, database, shards=chance.choice([1, 2, 4]))
        self.broker = FakeCluster(ProcessClock(), self.network("broker", deadline=30.0))
        self.appended: list[RawRecord] = []
        self._record_appends()
        self.service: Network = self.network("service", deadline=5.0)
        self.topics = [topic for topic in (_PLAIN, _ORDERS, _LEDGER, _MIXED) if chance.random() < 0.7] or [_PLAIN]
        self.partitions = {topic: chance.choice([1, 2, 3]) for topic in (*self.topics, _LATER)}
        for topic in self.topics:
            self.broker.create_topic(topic, self.partitions[topic])
        if chance.random() < 0.2:
            self.topics.append(_LATER)  # created in the middle of the story
        self.rows = chance.choice([20, 40, 80])
        self.keys = chance.choice([2, 6, 20])
        self.pause_chance = chance.choice([1.0, 0.3, 0.05])
        """Rows come one by one, or many at once."""
        # Looked up as seldom as in earnest, a topic that grows would be noticed after most stories have ended.
        topics_module._REFRESH = random.Random(seed).choice([60.0, 1.0])  # type: ignore[misc]  # for this run
        self.poison = chance.choice([0.0, 0.0, 0.03])
        self.refusals = chance.choice([0.0, 0.1])
        self.lease = timedelta(seconds=chance.choice([3, 10]))
        self.send_deadline = timedelta(seconds=chance.choice([2, 12]))
        self.events += [self._a_topic_is_denied, self._a_topic_grows, self._rows_are_corrected]
        self.written: dict[int, tuple[str, bytes | None, bytes | None, Headers]] = {}
        self.removed: set[int] = set()
        self.done: defaultdict[int, list[int]] = defaultdict(list)
        self.first_done: list[tuple[int, int]] = []
        self.is_written = False
        self.outbox.on_mark = self._marked
        self.outbox.refuses = self._refuses
        self.broken: Violation | None = None
        self._checked = 0
        self._published: set[int] = set()
        self._latest: dict[tuple[str, bytes], int] = {}

    def _record_appends(self) -> None:
        """Keep the order in which records came to stand in their topics, over all partitions."""
        append = self.broker.append

        def recorded(*arguments: Any) -> int:
            log = self.broker.logs.get(arguments[2])
            before = 0 if log is None else log.end
            base = append(*arguments)
            assert log is not None
            self.appended.extend(record for record in log.slots[before - log.start :] if record is not None)
            return base

        self.broker.append = recorded  # type: ignore[method-assign,assignment]

    # -- the frame's questions

    def make_run(self, replica: Replica, process: Process) -> Run:
        outbox = {"connection": "shop", "lease": self.lease, "poll_max": timedelta(seconds=0.4)}
        publish = {"connection": "main", "compression": "none", "send_deadline": self.send_deadline}
        return RelayRun(
            name="shop-outbox",
            settings=RelaySettings.model_validate({"outbox": outbox, "publish": publish}),
            outbox=self.outbox,
            leases=self.leases,
            brokers=self.broker,
            admin=self.broker.admin(),
            clock=process.clock,
            random=SeededRandom(self.chance.getrandbits(32)),
            executor=InlineExecutor(),
            telemetry=self.telemetry(process),
            logger=Quiet(process.name, self.journal),
            connections=cast("Connections", {}),
            owner=process.name,
            actions=self._plans(),
        )

    def _plans(self) -> Mapping[str, Sequence[ActionStep]]:
        def step(action: object, name: str) -> ActionStep:
            return ActionStep(name=name, action=cast("Action | TransactionalAction", action))

        calls = [step(_Calls(self, index), f"call-{index}") for index in range(2)]
        return {_ORDERS: calls, _LEDGER: [step(_Books(), "books")], _MIXED: [calls[0], step(_Books(), "books")]}

    async def play(self) -> None:
        writers = asyncio.create_task(self._write(), name="writers")
        try:
            for _ in range(self.chance.choice([4, 8, 14])):
                await self.sleep(self.chance.random() * 2.5)
                await self.something_happens()
            await self.until(writers.done, 120.0)
        finally:
            writers.cancel()
        self._correct_rows()
        if _LATER in self.topics and _LATER not in self.broker.topics:
            self.broker.create_topic(_LATER, self.partitions[_LATER])
        for topic in self.broker.topics:
            self.broker.deny(topic, is_denied=False)

    async def _a_topic_is_denied(self) -> None:
        topic = self.chance.choice(list(self.broker.topics))
        self.journal.note(f"{topic} is denied")
        self.broker.deny(topic)
        self.networks["broker"].later(self.chance.random() * 6, lambda: self.broker.deny(topic, is_denied=False))

    async def _a_topic_grows(self) -> None:
        topic = self.chance.choice(list(self.broker.topics))
        self.partitions[topic] += 1
        self.journal.note(f"{topic} gets a partition more")
        self.broker.create_topic(topic, self.partitions[topic])

    async def _rows_are_corrected(self) -> None:
        self._correct_rows()

    def server_died(self, server: str) -> None:
        if server == "broker":
            self.broker.is_down = True

    def server_came_back(self, server: str) -> None:
        if server == "broker":
            self.broker.is_down = False

    # -- writers

    async def _write(self) -> None:
        chance, outbox = self.chance, self.outbox
        open_rows: dict[bytes, tuple[int, str]] = {}
        for _ in range(self.rows):
            key = b"key-%d" % chance.randrange(self.keys)
            if key in open_rows:
                self._commit(key, *open_rows.pop(key))
            row_id, topic = outbox.draw(), chance.choice(self.topics)
            draw = chance.random()
            if draw < 0.25:
                open_rows[key] = (row_id, topic)  # commits later, when higher ids of other keys are long done
            elif draw > 0.05 + 0.25:
                self._commit(None if draw > 0.9 else key, row_id, topic)
            # else: rolled back, a gap for ever
            if chance.random() < self.pause_chance:
                await asyncio.sleep(chance.random() * 0.6)
        for key, (row_id, topic) in open_rows.items():
            self._commit(key, row_id, topic)

    def _commit(self, key: bytes | None, row_id: int, topic: str) -> None:
        chance = self.chance
        value = b"%d" % row_id
        if chance.random() < self.poison:
            value = _POISON + value
            self.broker.rejects.add(value)
        elif key is not None and chance.random() < 0.05:
            value = None  # type: ignore[assignment]
        headers = (
            Headers((("a", b"1"), ("a", None), ("b", bytes([row_id % 256])))) if chance.random() < 0.3 else Headers()
        )
        self.outbox.commit(row_id, topic, key, value, headers)
        self.written[row_id] = (topic, key, value, headers)

    def _correct_rows(self) -> None:
        """An operator sees to what can never be published: the topic's limit is raised, or the row is deleted."""
        for value in sorted(self.broker.rejects):
            row_id = int(value.removeprefix(_POISON))
            if row_id in self.outbox.unmarked and self.chance.random() < 0.5:
                self.journal.note(f"row {row_id} is deleted by hand")
                self.outbox.remove(row_id)
                self.removed.add(row_id)
        self.broker.rejects.clear()

    # -- what the outside sees

    def acted(self, published: Published, index: int) -> None:
        """The service is told of a row."""
        if not self.is_over and self.chance.random() < self.refusals:
            raise RuntimeError("the service says no")
        if index not in self.done[published.row_id]:
            self._follows(published, index)
            self.first_done.append((published.row_id, index))
        self.done[published.row_id].append(index)

    def _follows(self, published: Published, index: int) -> None:
        """Invariant 3 for actions, at the moment of the action: what came before it on this key is through with its own."""
        if published.key is None:
            return
        mine = (published.topic, published.key)
        for row_id in self.outbox.unmarked:
            if row_id < published.row_id and self.written[row_id][:2] == mine:
                if published.topic == _MIXED:
                    self._break(Violation(3, f"row {published.row_id}: an action before the statement of row {row_id}"))
                elif 1 not in self.done[row_id]:
                    self._break(Violation(3, f"row {published.row_id}: an action before those of row {row_id}"))

    def _refuses(self, statement: Statement) -> bool:
        return not self.is_over and self.chance.random() < self.refusals / 2

    def _marked(self, row_id: int) -> None:
        """Invariant 1, at the moment of the mark."""
        topic = self.written[row_id][0]
        if row_id not in self.broker.row_ids:
            self._break(Violation(1, f"row {row_id} was marked and is not in the log"))
        needed = {_ORDERS: [0, 1], _MIXED: [0]}.get(topic, [])
        if missing := [index for index in needed if index not in self.done[row_id]]:
            self._break(Violation(1, f"row {row_id} of {topic} was marked before its actions {missing} succeeded"))

    def _break(self, violation: Violation) -> None:
        self.broken = self.broken or violation

    # -- what must hold

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken
        self._check_order()

    def _check_order(self) -> None:
        for record in self.appended[self._checked :]:
            identity = parse_row_identity(record.headers.get(HEADER_ROW_ID))
            assert identity is not None
            row_id = identity[1]
            if row_id in self._published:
                raise Violation(3, f"row {row_id} stands twice in {record.topic}")
            self._published.add(row_id)
            if record.key is not None:
                before = self._latest.get((record.topic, record.key), 0)
                if before > row_id:
                    raise Violation(3, f"{record.topic} {record.key!r}: row {row_id} behind row {before}")
                self._latest[record.topic, record.key] = row_id
        self._checked = len(self.appended)

    def is_finished(self) -> bool:
        return not self.outbox.unmarked

    def state(self) -> str:
        return f"pending {self.outbox.unmarked[:20]}"

    def judge(self) -> None:
        self._judge_log()
        self._judge_actions()

    def _judge_log(self) -> None:
        found: dict[int, RawRecord] = {}
        for record in self.appended:
            identity = parse_row_identity(record.headers.get(HEADER_ROW_ID))
            assert identity is not None
            found[identity[1]] = record
        for row_id, (topic, key, value, headers) in self.written.items():
            there = found.get(row_id)
            if there is None:
                if row_id not in self.removed:
                    raise Violation(2, f"row {row_id} was committed and is not in the log")
                continue
            kept = Headers(pair for pair in there.headers if pair[0] != HEADER_ROW_ID)
            if (there.topic, there.key, there.value, kept) != (topic, key, value, headers):
                raise Violation(7, f"row {row_id} is {there} in the log, not {(topic, key, value, headers)}")

    def _judge_actions(self) -> None:
        order: dict[tuple[str, bytes, int], int] = {}
        for row_id, index in self.first_done:
            topic, key, _, _ = self.written[row_id]
            if key is not None:
                if order.get((topic, key, index), 0) > row_id:
                    raise Violation(
                        3, f"action {index} of {topic} {key!r}: row {row_id} behind {order[topic, key, index]}"
                    )
                order[topic, key, index] = row_id
        for row_id, indexes in self.done.items():
            if self.written[row_id][0] == _ORDERS and indexes.index(1) < indexes.index(0):
                raise Violation(3, f"row {row_id}: its second action succeeded before its first")
        lines = [int(str(statement.arguments[0])) for statement in self.outbox.statements]
        last: dict[tuple[str, bytes], int] = {}
        for row_id in lines:
            topic, key, _, _ = self.written[row_id]
            if key is not None:
                if last.get((topic, key), 0) > row_id:
                    raise Violation(3, f"the ledger has row {row_id} of {topic} {key!r} behind row {last[topic, key]}")
                last[topic, key] = row_id
        ledger = sorted(lines)
        rows = [
            row for row, written in self.written.items() if written[0] in {_LEDGER, _MIXED} and row not in self.removed
        ]
        if ledger != sorted(rows):
            raise Violation(1, f"the ledger has {ledger}, its rows are {sorted(rows)}")

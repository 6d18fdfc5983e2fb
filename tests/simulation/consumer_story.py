"""Consumers under faults: replicas in a group, handlers that fail, dead-letter chains whose sinks come and go, replays."""

from __future__ import annotations

import asyncio
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast
from uuid import UUID

from opentelemetry.metrics import NoOpMeter

from outboxd.api import Connections, HandlerContext, PluginContext, StatelessPlugin
from outboxd.errors import BrokerUnreachable, MoveRefused, OutboxdError
from outboxd.pipeline.consumer.consumer import ConsumerRun
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.letters.chain import Chain, ChainLink
from outboxd.pipeline.letters.classification import Classification, Rule, When
from outboxd.pipeline.letters.drain import drain_jobs
from outboxd.records import LetterStatus, RawRecord, Record, TopicPartition, Verdict
from outboxd.runtime.kafka_connection import SharedKafkaConnection
from outboxd.testing.fakes.clock import SeededRandom
from outboxd.testing.fakes.files import FakeFiles
from outboxd.testing.fakes.kafka.cluster import FakeCluster
from outboxd.testing.fakes.lease import FakeLeases
from outboxd.testing.fakes.letters import FakeLetters
from outboxd_plugins.sinks.kafka import KafkaSink, KafkaSinkSettings
from outboxd_plugins.sinks.postgres import PostgresSink, PostgresSinkSettings
from outboxd_plugins.sinks.spool import SpoolSink, SpoolSinkSettings
from outboxd_plugins.sinks.spool_segment import Entry, entries
from tests.simulation.machine import Disk, SimulatedExecutor
from tests.simulation.process import Process, ProcessClock
from tests.simulation.story import Quiet, Replica, Run, Story, Violation

__all__ = ["ConsumerStory"]

_TOPIC, _DLQ, _GROUP = "orders", "orders.dlq", "shop"
_HOME, _TOPICS, _SPOOL = "home", "topics", "spool"
_ATTEMPTS: Final = 3
_LITTLE: Final = 1_200
"""Bytes of a record that a dead-letter topic takes in some runs."""

At = tuple[int, int]
"""Partition and offset."""


class Poisonous(LookupError):
    """Never to be handled, until somebody corrects what is wrong."""


class Flaky(ValueError):
    """Goes away when it is tried again."""


class Away(ConnectionError):
    """The service that the handler needs does not answer."""


class _Codec:
    def decode(self, raw: bytes | None, record: RawRecord) -> object:
        return raw


class _Handler(StatelessPlugin):
    """Tells a service of each record, as a coroutine."""

    def __init__(self, story: ConsumerStory, process: Process) -> None:
        self._story = story
        self._process = process

    async def handle(self, record: Record, context: HandlerContext) -> None:
        story = self._story
        began = story.began(self._process, record)
        try:
            if story.chance.random() < 0.5:
                await asyncio.sleep(story.chance.choice([0.001, 0.05, 0.4, 2.0]))
            if story.hangs(record):
                await asyncio.sleep(3600)
            try:
                await story.service.around("handle", lambda: story.handle(record))
            except OutboxdError as error:
                raise Away(str(error)) from error
        finally:
            story.ended(self._process, began)


class _PlainHandler(StatelessPlugin):
    """Tells a service of each record, as a plain function in a thread."""

    def __init__(self, story: ConsumerStory) -> None:
        self._story = story

    def handle(self, record: Record, context: HandlerContext) -> None:
        if self._story.service.is_down or self._story.service.is_frozen:
            raise Away("the service is away")
        self._story.handle(record)


class _Connections:
    """The connections of one process."""

    def __init__(self, letters: FakeLetters, kafka: SharedKafkaConnection) -> None:
        self._letters = letters
        self._kafka = kafka

    def __getitem__(self, name: str) -> object:
        return self._kafka

    def kafka(self, name: str) -> SharedKafkaConnection:
        return self._kafka

    def home(self, name: str) -> FakeLetters:
        return self._letters


class _WatchedCommits(list[tuple[str, TopicPartition, int]]):
    """Tells of each commit at the moment in which the broker takes it."""

    def __init__(self, story: ConsumerStory) -> None:
        super().__init__()
        self._story = story

    def append(self, commit: tuple[str, TopicPartition, int]) -> None:
        super().append(commit)
        self._story.committed(commit[1], commit[2])


class ConsumerStory(Story):
    """Records with a few keys; some are poison, some fail once or twice; the chain has one to three sinks."""

    shows = ("broker",)

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        chance = self.chance
        database = self.network("database", deadline=12.0)
        self.leases = FakeLeases(self.database_clock, database)
        self.letters = FakeLetters(self.database_clock, SeededRandom(seed), self.leases, database)
        self.partitions = chance.choice([1, 2, 3])
        self.cluster = FakeCluster(
            ProcessClock(),
            self.network("broker", deadline=30.0),
            {_TOPIC: self.partitions, _DLQ: chance.choice([1, 2])},
        )
        if chance.random() < 0.3:
            self.cluster.create_topic(_DLQ, chance.choice([1, 2]), max_message_bytes=_LITTLE)
        self.cluster.coordinator.commits = _WatchedCommits(self)
        self.service = self.network("service", deadline=chance.choice([1.0, 5.0]))
        self.weather.in_order = frozenset({"commit"})
        self.chain = chance.choice(
            [[_HOME], [_HOME, _TOPICS], [_TOPICS, _HOME], [_HOME, _SPOOL], [_HOME, _TOPICS, _SPOOL]]
        )
        self.disks = [FakeFiles(Disk(self.weather, self.journal)) for _ in self.replicas]
        self.is_plain = chance.random() < 0.2
        self.settings = self._settings()
        self.events += [
            self._records_come,
            self._records_come,
            self._the_topic_grows,
            self._a_partition_raises,
            self._letters_are_replayed,
        ]
        self.poison: set[At] = set()
        self.corrected: set[At] = set()
        self.refused: defaultdict[At, int] = defaultdict(int)
        """How often the handler said of a record that it is poison."""
        self.flaky: dict[At, int] = {}
        self.hanging: set[At] = set()
        self.failed_times: defaultdict[At, int] = defaultdict(int)
        self.handled: dict[At, int] = {}
        self.replayed: defaultdict[At, int] = defaultdict(int)
        self.order: defaultdict[tuple[int, bytes], list[int]] = defaultdict(list)
        self.running: dict[tuple[str, int, bytes], int] = {}
        self.broken: Violation | None = None
        self.verified: defaultdict[TopicPartition, int] = defaultdict(int)
        self.jobs: list[tuple[UUID, list[UUID]]] = []

    def _settings(self) -> ConsumerSettings:
        chance = self.chance
        return ConsumerSettings.model_validate(
            {
                "consume": {
                    "connection": "main",
                    "topics": [_TOPIC],
                    "group": _GROUP,
                    "decode": "raw",
                    "concurrency": chance.choice([1, 3, 16]),
                    "max_pending": chance.choice([3, 20, 1000]),
                    "session_timeout": chance.choice(["6s", "10s"]),
                    "rebalance_timeout": chance.choice(["21s", "24s"]),
                    "commit_every": chance.choice(["100ms", "700ms"]),
                },
                "handler": {"type": "python", "timeout": "20s"},
                "errors": {
                    "retry": {"attempts": _ATTEMPTS, "initial": "100ms", "jitter": "full"},
                    "outage": {"failures": 5, "within": "10s", "probe_every": "500ms"},
                },
                "dead_letters": {"exhausted": "wait"},
            }
        )

    # -- the frame's questions

    def make_run(self, replica: Replica, process: Process) -> Run:
        telemetry = self.telemetry(process)
        logger = Quiet(process.name, self.journal)
        random = SeededRandom(self.chance.getrandbits(32))
        files = self.disks[replica.number]
        files.locked.clear()  # the kernel gives back what a dead process had locked
        connections = cast("Connections", _Connections(self.letters, SharedKafkaConnection(self.cluster)))
        executor = SimulatedExecutor(process, self.weather)

        def context(name: str) -> PluginContext:
            return PluginContext(
                name=name,
                pipeline=_GROUP,
                instance=f"replica-{replica.number}",
                logger=logger,
                meter=NoOpMeter("simulation"),
                clock=process.clock,
                connections=connections,
                executor=executor,
                files=files,
                is_stopping=lambda: False,
                group=_GROUP,
                topics=[_TOPIC],
            )

        chain = Chain(pipeline=_GROUP, links=self._links(context), clock=process.clock, telemetry=telemetry)
        drains = drain_jobs(
            chain,
            pipeline=_GROUP,
            leases=self.leases,
            store=self.letters,
            owner=process.name,
            instance=f"replica-{replica.number}",
            clock=process.clock,
            random=random,
            telemetry=telemetry,
        )
        return ConsumerRun(
            name=_GROUP,
            settings=self.settings,
            brokers=self.cluster,
            handler=_PlainHandler(self) if self.is_plain else _Handler(self, process),
            handler_id="python:shop",
            codec=_Codec(),
            classification=Classification(
                pipeline=_GROUP,
                rules=[
                    Rule(when=When(exceptions=("LookupError",)), then=Verdict.DEAD_LETTER),
                    Rule(when=When(exceptions=("ConnectionError",)), then=Verdict.PAUSE),
                ],
                otherwise=Verdict.RETRY,
            ),
            chain=chain,
            connections=connections,
            logger=logger,
            clock=process.clock,
            random=random,
            executor=executor,
            telemetry=telemetry,
            owner=process.name,
            drains=drains,
            letter_store=self.letters,
        )

    def _links(self, context: Any) -> Sequence[ChainLink]:
        seconds = timedelta(seconds=3)
        links = []
        for name in self.chain:
            sink: Any
            match name:
                case "home":
                    sink = PostgresSink(PostgresSinkSettings(connection="shop"), context(name))
                    links.append(ChainLink(name=name, type="postgres", sink=sink, deadline=seconds))
                case "topics":
                    settings = KafkaSinkSettings(connection="main", topic=_DLQ)
                    sink = KafkaSink(settings, context(name))
                    links.append(ChainLink(name=name, type="kafka", sink=sink, deadline=seconds))
                case _:
                    sink = SpoolSink(SpoolSinkSettings(directory="/spool"), context(name))
                    links.append(ChainLink(name=name, type="spool", sink=sink, deadline=seconds))
        return links

    async def play(self) -> None:
        self._produce(30)
        for _ in range(self.chance.choice([4, 8, 14])):
            await self.sleep(self.chance.random() * 2.5)
            await self.something_happens()
        self.cluster.poll_faults.clear()

    async def _records_come(self) -> None:
        self._produce(self.chance.randrange(30))

    async def _the_topic_grows(self) -> None:
        if self.partitions < 4:
            self.partitions += 1
            self.journal.note(f"{_TOPIC} gets a partition more")
            self.cluster.create_topic(_TOPIC, self.partitions)

    async def _letters_are_replayed(self) -> None:
        self._correct()

    def server_died(self, server: str) -> None:
        if server == "broker":
            self.cluster.is_down = True

    def server_came_back(self, server: str) -> None:
        if server == "broker":
            self.cluster.is_down = False

    async def _a_partition_raises(self) -> None:
        tp = TopicPartition(_TOPIC, self.chance.randrange(self.partitions))
        self.journal.note(f"polls of {tp} raise")
        self.cluster.poll_faults[tp] = BrokerUnreachable("this partition's leader is away")
        self.networks["broker"].later(self.chance.random() * 5, lambda: self.cluster.poll_faults.pop(tp, None))
        await self.sleep(self.chance.random() * 2)

    # -- the world's side

    def _produce(self, count: int) -> None:
        chance = self.chance
        for _ in range(count):
            key = chance.choice([None, b"a", b"b", b"c", b"d", b"e"])
            partition = chance.randrange(self.partitions) if key is None else zlib.crc32(key) % self.partitions
            if key is not None:
                key += b"-%d" % partition  # a key never moves, also when partitions are added
            value = b"%d" % chance.getrandbits(32)
            if chance.random() < 0.1:
                value *= 300  # too large for a dead-letter topic that takes little
            offset = self.cluster.produce(_TOPIC, key, value, partition=partition)
            draw = chance.random()
            if draw < 0.08:
                self.poison.add((partition, offset))
            elif draw < 0.09 and not self.is_plain:
                self.hanging.add((partition, offset))
            elif draw < 0.2:
                self.flaky[partition, offset] = chance.choice([1, _ATTEMPTS - 1])
            if chance.random() < 0.05:
                self.cluster.mark(_TOPIC, partition)

    def _correct(self) -> None:
        """An operator corrects what was wrong with some letters, and replays all that may be replayed."""
        for at in sorted(self.poison - self.corrected):
            if self.chance.random() < 0.5:
                self.corrected.add(at)
        ids = [
            letter.id
            for letter in self.letters.letters
            if self.letters.status(letter.id) in {LetterStatus.NEW, LetterStatus.FAILED}
            and not any(letter.id in wanted for _, wanted in self._open_jobs())
        ]
        if not ids:
            return
        self.journal.note(f"{len(ids)} letters are replayed")
        task = asyncio.ensure_future(self.letters.create_replay(ids, actor="operator"))
        task.add_done_callback(lambda done: self._replays(done, ids))

    def _replays(self, done: asyncio.Future[Any], ids: list[UUID]) -> None:
        if not isinstance(done.exception(), MoveRefused):
            self.jobs.append((done.result().id, ids))

    def _open_jobs(self) -> list[tuple[UUID, list[UUID]]]:
        return [job for job in self.jobs if any(self._is_open(job[0]))]

    def _is_open(self, job_id: UUID) -> list[bool]:
        job = self.letters._rows.jobs[job_id]
        return [item.state in {"waiting", "claimed"} for item in job.items]

    # -- what the outside sees

    def began(self, process: Process, record: Record) -> tuple[str, int, bytes] | None:
        """A handler begins; never two of one key at once in one process."""
        if record.key is None:
            return None
        lane = (process.name, record.partition, record.key)
        if lane in self.running and not process.is_dead:
            self._break(Violation(3, f"{record.key!r}: offsets {self.running[lane]} and {record.offset} run at once"))
        self.running[lane] = record.offset
        return lane

    def ended(self, process: Process, lane: tuple[str, int, bytes] | None) -> None:
        """A handler ended."""
        if lane is not None:
            self.running.pop(lane, None)

    def handle(self, record: Record) -> None:
        """The service is told of a record."""
        at = (record.partition, record.offset)
        if record.attempt > 1 + self.failed_times[at]:
            words = f"{at} is at attempt {record.attempt} and failed {self.failed_times[at]} times outside of outages"
            self._break(Violation(5, words))
        if at in self.poison and at not in self.corrected:
            self.refused[at] += 1
            raise Poisonous("poison")
        if self.flaky.get(at, 0) > 0:
            self.flaky[at] -= 1
            self.failed_times[at] += 1
            raise Flaky("not now")
        self.handled[at] = self.handled.get(at, 0) + 1
        if record.key is not None and at not in self.poison:
            self.order[record.partition, record.key].append(record.offset)

    def hangs(self, record: Record) -> bool:
        """Whether this call never returns by itself."""
        at = (record.partition, record.offset)
        if at not in self.hanging:
            return False
        self.hanging.remove(at)
        self.failed_times[at] += 1
        return True

    def committed(self, tp: TopicPartition, offset: int) -> None:
        """Invariant 4, at the moment of the commit."""
        log = self.cluster.logs[tp]
        for at in range(self.verified[tp], offset):
            if (
                log.at(at) is not None
                and (tp.partition, at) not in self.handled
                and not self._is_durable(tp.partition, at)
            ):
                self._break(Violation(4, f"{offset} of {tp} was committed, and {at} has no outcome"))
        self.verified[tp] = max(self.verified[tp], offset)

    def _is_durable(self, partition: int, offset: int) -> bool:
        def is_it(letter: Any) -> bool:
            return (letter.partition, letter.offset) == (partition, offset)

        if any(map(is_it, self.letters.letters)):
            return True
        if any(
            f"{_TOPIC}-{partition}@{offset}".encode() in self._places(record) for record in self.cluster.records(_DLQ)
        ):
            return True
        return any(is_it(letter) for disk in self.disks for letter in _spooled(disk))

    @staticmethod
    def _places(record: RawRecord) -> list[bytes]:
        get = record.headers.get
        topic = get("__connect.errors.topic") or b""
        return [b"%s-%s@%s" % (topic, get("__connect.errors.partition") or b"", get("__connect.errors.offset") or b"")]

    def _break(self, violation: Violation) -> None:
        self.broken = self.broken or violation

    # -- what must hold

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def is_finished(self) -> bool:
        return (
            all(self.cluster.offset_of(_GROUP, tp) == log.end for tp, log in self._logs().items())
            and len(self.letters.letters) >= len(self._expected())
            and not self._open_jobs()
        )

    def _expected(self) -> set[At]:
        """Records that must have become letters: poison, unless it was corrected before its first run."""
        return {at for at in self.poison if at not in self.handled or at in self._lettered()} | set()

    def _lettered(self) -> set[At]:
        return {(letter.partition, letter.offset) for letter in self.letters.letters}

    def _logs(self) -> Mapping[TopicPartition, Any]:
        return {tp: log for tp, log in self.cluster.logs.items() if tp.topic == _TOPIC and log.end}

    def state(self) -> str:
        offsets = {str(tp): (self.cluster.offset_of(_GROUP, tp), log.end) for tp, log in self._logs().items()}
        return f"offsets {offsets}, {len(self.letters.letters)} letters of {len(self._expected())}, {len(self._open_jobs())} jobs"

    def judge(self) -> None:
        ats = [(letter.partition, letter.offset) for letter in self.letters.letters]
        if len(ats) != len(set(ats)):
            raise Violation(6, f"a letter stands twice at home: {sorted(ats)}")
        if strangers := set(ats) - self.poison:
            raise Violation(5, f"letters of records that are no poison: {sorted(strangers)}")
        if missing := self._expected() - set(ats):
            raise Violation(8, f"no letter at home for {sorted(missing)}")
        for tp, log in self._logs().items():
            for slot in log.slots:
                at = (tp.partition, slot.offset) if slot is not None else None
                if at is not None and at not in self.handled and at not in set(ats):
                    raise Violation(4, f"{at} was neither handled nor lettered")
        for key, offsets in self.order.items():
            firsts = list(dict.fromkeys(offsets))
            if firsts != sorted(firsts):
                raise Violation(3, f"key {key} ran out of order: {offsets}")
        self._judge_letters()

    def _judge_letters(self) -> None:
        for letter in self.letters.letters:
            record = self.cluster.logs[TopicPartition(letter.topic, letter.partition)].at(letter.offset)
            assert record is not None
            kept = (letter.key, letter.value, letter.headers, letter.timestamp)
            if kept != (record.key, record.value, record.headers, record.timestamp):
                raise Violation(7, f"letter of {letter.partition}@{letter.offset} is not its record: {letter}")
            status = self.letters.status(letter.id)
            at = (letter.partition, letter.offset)
            if status is LetterStatus.RESOLVED and at not in self.handled:
                raise Violation(9, f"letter of {at} is RESOLVED and was never handled")
            if status is LetterStatus.FAILED and self.refused[at] < 2:
                raise Violation(9, f"letter of {at} is FAILED, and the handler did not refuse it again")
            if status is LetterStatus.PROCESSING:
                raise Violation(9, f"letter of {at} is PROCESSING and nobody works on it")


def _spooled(disk: FakeFiles) -> list[Any]:
    found = []
    for path, content in disk.contents.items():
        if path.endswith(".letters"):
            found += [entry.letter for entry in entries(bytes(content), 0) if isinstance(entry, Entry)]
    return found

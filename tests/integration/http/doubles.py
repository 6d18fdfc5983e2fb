"""A control over scripted pipelines and letters in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID, uuid4

from outboxd.config import Configuration, ConfigurationOrigin
from outboxd.config.process_settings import DaemonSettings, HttpSettings
from outboxd.errors import DatabaseUnreachable, LetterUnknown, MoveRefused
from outboxd.ports import LetterFilter, LetterPage, LetterStore, LetterView, ReplayJob
from outboxd.records import Headers, Letter, LetterStatus, Stage, TimestampType
from outboxd.runtime.changes import Changes, changes
from outboxd.runtime.control import Control, PluginInfo
from outboxd.runtime.letter_desk import LetterDesk
from outboxd.runtime.reload import Reloader
from outboxd.telemetry.exporters import Metrics, resource
from outboxd.telemetry.metrics import Instruments
from outboxd.telemetry.settings import TelemetrySettings
from tests.unit.runtime.doubles import World

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def letter(offset: int = 7, *, pipeline: str = "orders", value: bytes | None = b'{"total": 10}') -> Letter:
    return Letter(
        id=UUID(int=offset),
        pipeline=pipeline,
        group=pipeline,
        handler="python shop.orders:apply_status",
        topic="orders.status_updated",
        partition=0,
        offset=offset,
        timestamp=1_700_000_000_000,
        timestamp_type=TimestampType.CREATE_TIME,
        key=b"order-17",
        value=value,
        headers=Headers([("event", b"created"), ("event", None), ("bin", b"\xff")]),
        stage=Stage.HANDLE,
        error_class="shop.domain.InvalidTransition",
        error_root_class="shop.domain.InvalidTransition",
        error_message="created cannot become delivered",
        error_traceback="Traceback ...",
        attempts=1,
        first_failed_at=NOW,
        last_failed_at=NOW,
        rule="rule 1",
        fingerprint="abc",
    )


@dataclass
class MemoryHome:
    """As much of a `LetterStore` as a desk asks for."""

    letters: list[Letter] = field(default_factory=list)
    jobs: dict[UUID, ReplayJob] = field(default_factory=dict)
    resolved: set[UUID] = field(default_factory=set)
    is_down: bool = False

    async def find(self, wanted: LetterFilter, *, limit: int, cursor: str | None = None) -> LetterPage:
        self._check()
        start = 0 if cursor is None else int(cursor)
        fitting = [
            each
            for each in self.letters
            if (wanted.pipeline is None or each.pipeline == wanted.pipeline)
            and (wanted.key is None or each.key == wanted.key)
        ]
        end = start + limit
        return LetterPage(
            items=[self._view(each) for each in fitting[start:end]], next=str(end) if end < len(fitting) else None
        )

    async def get(self, letter_id: UUID) -> LetterView:
        self._check()
        for each in self.letters:
            if each.id == letter_id:
                return self._view(each)
        raise LetterUnknown(f"no letter {letter_id}")

    async def create_replay(self, letter_ids: Sequence[UUID], *, actor: str) -> ReplayJob:
        self._check()
        if self.resolved & set(letter_ids):
            raise MoveRefused("the letter is RESOLVED")
        job = ReplayJob(
            id=uuid4(),
            state="WAITING",
            mode="in_place",
            total=len(letter_ids),
            sent=0,
            resolved=0,
            failed=0,
            created_at=NOW,
            actor=actor,
            reason="no owner",
            letters=tuple(letter_ids),
        )
        self.jobs[job.id] = job
        return job

    async def replay(self, job_id: UUID) -> ReplayJob:
        self._check()
        if job_id not in self.jobs:
            raise LetterUnknown(f"no job {job_id}")
        return self.jobs[job_id]

    def _check(self) -> None:
        if self.is_down:
            raise DatabaseUnreachable("connection refused", suggestion="start it")

    def _view(self, each: Letter) -> LetterView:
        return LetterView(
            letter=each,
            status=LetterStatus.RESOLVED if each.id in self.resolved else LetterStatus.NEW,
            sink="postgres",
            created_at=NOW,
            updated_at=NOW,
            replay_count=0,
        )


_CONFIGURATION = Configuration(
    daemon=DaemonSettings(), http=HttpSettings(), telemetry=TelemetrySettings(), connections={}, pipelines={}
)


async def _nothing_changes(_configuration: Configuration) -> Changes:
    return changes(_CONFIGURATION, _CONFIGURATION, used=lambda _: frozenset())


@dataclass
class Daemon:
    """A control with everything that a test may turn."""

    world: World = field(default_factory=lambda: World(names=("orders", "payments")))
    shop: MemoryHome = field(default_factory=MemoryHome)
    bank: MemoryHome = field(default_factory=MemoryHome)
    is_draining: bool = False
    origin: ConfigurationOrigin | None = None

    def __post_init__(self) -> None:
        self.reloader = Reloader(
            _CONFIGURATION,
            origin=self.origin,
            apply=_nothing_changes,
            clock=self.world.clock,
            telemetry=self.world.telemetry,
        )
        metrics = Metrics(resource("shop", "shop-1"))
        Instruments(metrics.meter).pipelines.register("orders", "consumer")
        homes: dict[str, LetterStore] = {"shop-db": self.shop, "bank-db": self.bank}  # type: ignore[dict-item]  # a desk asks no more
        self.control = Control(
            name="shop",
            version="0.1.0",
            instance="shop-1",
            supervisor=self.world.supervisor,
            letters=LetterDesk(
                homes=homes, of_pipeline={"orders": "shop-db", "payments": "bank-db", "orders-outbox": None}
            ),
            telemetry=self.world.telemetry,
            metrics_page=metrics.page,
            metrics_content_type=metrics.content_type,
            plugins=lambda: [PluginInfo(kind="handler", name="python", distribution="outboxd", version="0.1.0")],
            configuration=lambda: {"connections": {"shop-db": {"dsn": "${env:SHOP_DSN}"}}},
            reloader=self.reloader,
            is_draining=lambda: self.is_draining,
        )

"""Makes the run of a relay: its table, its leases, its producers, its actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from outboxd.pipeline.relay.context import PublishObserver
from outboxd.pipeline.relay.relay import ActionStep, RelayRun
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.pipeline.run import PipelineRun
from outboxd.postgres.lease_store import PostgresLeaseStore
from outboxd.postgres.outbox_store import PostgresOutboxStore
from outboxd.postgres.outbox_table import OutboxColumns, OutboxTable
from outboxd.runtime.connections import OpenConnections
from outboxd.runtime.executor import ThreadExecutor
from outboxd.runtime.owned_run import RunResources, owned
from outboxd.runtime.plugins import PluginFactory
from outboxd.runtime.process import Process
from outboxd.telemetry.logs import get_logger

__all__ = ["build_relay", "outbox_table"]

_POOL = 10
"""Connections of a relay: fetch, marks and leases of several shards at once."""
_ACTION_THREADS = 16


async def build_relay(process: Process, name: str, settings: RelaySettings) -> PipelineRun:
    """A new run. Raises ConfigurationError, PluginError."""
    resources = RunResources(
        OpenConnections(process.connections, pool_size=_POOL),
        ThreadExecutor(threads=_ACTION_THREADS, name=f"{name}-action"),
        pipeline=name,
        use=process.use,
    )
    return await owned(resources, partial(_run, process, name, settings, resources))


def outbox_table(settings: RelaySettings) -> OutboxTable:
    """The table as the store understands it."""
    outbox, fixed = settings.outbox, settings.publish.topic
    columns = OutboxColumns() if fixed is None else OutboxColumns(topic=f"'{fixed}'::text")
    return OutboxTable(
        name=outbox.table, columns=columns, marks={"published_at": "now()"} if outbox.done == "mark" else None
    )


def _run(process: Process, name: str, settings: RelaySettings, resources: RunResources) -> PipelineRun:
    connections = resources.connections
    connector = connections.connector(settings.outbox.connection)
    broker = connections.broker(settings.publish.connection)
    admin = broker.admin()
    connections.also_close(admin.close)
    factory = PluginFactory(
        process,
        pipeline=name,
        connections=connections,
        executor=resources.executor,
        is_stopping=resources.is_stopping,
        topics=tuple(settings.publish.topics or ()),
    )
    actions = _actions(settings, factory)
    return RelayRun(
        name=name,
        settings=settings,
        outbox=PostgresOutboxStore(
            connector,
            pipeline=name,
            table=outbox_table(settings),
            has_actions=any(actions.values()),
            new_id=process.random.uuid,
        ),
        leases=PostgresLeaseStore(connector),
        brokers=broker,
        admin=admin,
        clock=process.clock,
        random=process.random,
        executor=resources.executor,
        telemetry=process.telemetry,
        logger=get_logger(pipeline=name),
        connections=connections,
        owner=process.owner(),
        actions=actions,
        on_published=_observer(process),
    )


def _actions(settings: RelaySettings, factory: PluginFactory) -> Mapping[str, Sequence[ActionStep]]:
    return {
        topic: [
            ActionStep(name=f"{each.plugin.type}[{index}]", action=factory.make(each.plugin), deadline=each.timeout)
            for index, each in enumerate(of_topic.after_publish)
        ]
        for topic, of_topic in (settings.publish.topics or {}).items()
    }


def _observer(process: Process) -> PublishObserver:
    def published(pipeline: str, topic: str, partition: int, offset: int, count: int) -> None:
        process.hooks.notify(
            "outboxd_batch_published", pipeline=pipeline, topic=topic, partition=partition, offset=offset, count=count
        )

    return published

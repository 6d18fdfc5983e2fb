"""Makes the run of a consumer: its handler, its classification, its chain of sinks with the drains home."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from outboxd.api.references import PluginReference
from outboxd.pipeline.consumer.consumer import ConsumerRun
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.letters.chain import Chain, ChainLink
from outboxd.pipeline.letters.classification import Classification, NamedClassifier, Rule, When
from outboxd.pipeline.letters.drain import drain_jobs
from outboxd.pipeline.letters.making import LetterHooks
from outboxd.pipeline.letters.settings import DeadLetterSettings, RuleSettings, SinkSettings
from outboxd.pipeline.run import PipelineRun
from outboxd.postgres.lease_store import PostgresLeaseStore
from outboxd.records import Letter
from outboxd.runtime.connections import OpenConnections
from outboxd.runtime.executor import ThreadExecutor
from outboxd.runtime.owned_run import RunResources, owned
from outboxd.runtime.plugins import PluginFactory
from outboxd.runtime.process import Process
from outboxd.telemetry.logs import get_logger

__all__ = ["build_consumer", "home_connection"]

_HOME = "postgres"
_OWN_POOL = 4
"""Connections for letters, drain and replays, beside those that the handler may use at once."""
_HANDLER_POOL = 16


async def build_consumer(process: Process, name: str, settings: ConsumerSettings) -> PipelineRun:
    """A new run. Raises ConfigurationError, PluginError."""
    concurrency = settings.consume.concurrency
    resources = RunResources(
        OpenConnections(process.connections, pool_size=_OWN_POOL + min(concurrency, _HANDLER_POOL)),
        ThreadExecutor(threads=concurrency, name=f"{name}-handler"),
        pipeline=name,
        use=process.use,
    )
    return await owned(resources, partial(_run, process, name, settings, resources))


def home_connection(dead_letters: DeadLetterSettings) -> str | None:
    """The connection where letters come home: that of the first Postgres sink."""
    for sink in dead_letters.chain:
        if sink.plugin.type == _HOME:
            connection = getattr(sink.plugin.settings, "connection", None)
            return connection if isinstance(connection, str) else None
    return None


def _run(process: Process, name: str, settings: ConsumerSettings, resources: RunResources) -> PipelineRun:
    connections = resources.connections
    group = settings.consume.group or name
    factory = PluginFactory(
        process,
        pipeline=name,
        connections=connections,
        executor=resources.executor,
        is_stopping=resources.is_stopping,
        group=group,
        topics=settings.consume.topics,
    )
    chain = Chain(
        pipeline=name,
        links=[_link(sink, factory) for sink in settings.dead_letters.chain],
        clock=process.clock,
        telemetry=process.telemetry,
        on_written=partial(_written, process),
    )
    owner = process.owner()
    home = home_connection(settings.dead_letters)
    store = None if home is None else connections.letters(home)
    drains = (
        ()
        if home is None or store is None
        else drain_jobs(
            chain,
            pipeline=name,
            leases=PostgresLeaseStore(connections.connector(home)),
            store=store,
            owner=owner,
            instance=process.instance,
            clock=process.clock,
            random=process.random,
            telemetry=process.telemetry,
        )
    )
    classifiers = _classifiers(process, factory)
    return ConsumerRun(
        name=name,
        settings=settings,
        brokers=connections.broker(settings.consume.connection),
        handler=factory.make(settings.handler.plugin),
        handler_id=_handler_id(settings.handler.plugin),
        codec=factory.make(settings.consume.decode.plugin),
        classification=Classification(
            pipeline=name,
            rules=[_rule(rule) for rule in settings.errors.rules],
            otherwise=settings.errors.otherwise,
            classifiers=classifiers,
            telemetry=process.telemetry,
        ),
        chain=chain,
        connections=connections,
        logger=get_logger(pipeline=name),
        clock=process.clock,
        random=process.random,
        executor=resources.executor,
        telemetry=process.telemetry,
        owner=owner,
        hooks=LetterHooks(
            redact=process.hooks.redact, fingerprint=process.hooks.fingerprint, mask=process.redactor.text
        ),
        plugins=[named.classifier for named in classifiers],
        drains=drains,
        letter_store=store,
        tracer=process.tracer,
        instance_id=process.instance_id,
        drain_timeout=process.drain_timeout,
    )


def _link(sink: SinkSettings, factory: PluginFactory) -> ChainLink:
    name = sink.name or sink.plugin.type
    return ChainLink(
        name=name,
        type=sink.plugin.type,
        sink=factory.make(sink.plugin, name=name),
        deadline=sink.deadline,
        is_drained=sink.drain,
    )


def _rule(rule: RuleSettings) -> Rule:
    when = rule.when
    return Rule(
        when=When(
            exceptions=when.exception or (),
            messages=[re.compile(each) for each in when.message or ()],
            sqlstates=when.sqlstate or (),
            stages=when.stage or (),
        ),
        then=rule.then,
    )


def _classifiers(process: Process, factory: PluginFactory) -> Sequence[NamedClassifier]:
    """Every classifier that is installed, by name: installing one is the wish to have it asked."""
    return [
        NamedClassifier(
            name=each.name,
            classifier=factory.make(
                PluginReference(kind="classifier", type=each.name, settings=each.settings.model_validate({}))
            ),
            context=factory.context(each.name),
        )
        for each in process.registry.plugins("classifier")
    ]


def _handler_id(handler: PluginReference) -> str:
    """What letters and fingerprints call the handler: its type and, where it has one, its target."""
    target = getattr(handler.settings, "target", None)
    return f"{handler.type} {target}" if isinstance(target, str) else handler.type


def _written(process: Process, letter: Letter, sink: str) -> None:
    process.hooks.notify("outboxd_letter_written", letter=letter, sink=sink)

"""Checks across sections: what each part allows by itself and the whole does not. No server is asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations

from outboxd.api.references import PluginReference
from outboxd.api.settings import ConnectionRef
from outboxd.config.defaults import Connection
from outboxd.config.problems import KeyPath, Problem
from outboxd.config.reflection import connection_names
from outboxd.config.source import Source
from outboxd.config.suggestion import closest
from outboxd.errors import PluginError
from outboxd.kafka.settings import KafkaSettings
from outboxd.pipeline.consumer.settings import ConsumerSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.postgres.settings import PostgresSettings
from outboxd.registry import Registry

__all__ = ["Pipeline", "check_connections", "check_consumers", "check_relays"]

Pipeline = RelaySettings | ConsumerSettings


def check_connections(
    named: Iterable[tuple[KeyPath, str, ConnectionRef]], connections: Mapping[str, Connection | None], source: Source
) -> Iterator[Problem]:
    """Each connection that is named exists and has the right type; ``connections`` holds None for invalid ones."""
    for where, name, reference in named:
        connection = connections.get(name)
        said = source.text(where)
        if name not in connections:
            candidates = [key for key, value in connections.items() if value is None or value.type == reference.type]
            yield _problem(
                source, where, "connection_unknown", f"no connection is called {said}", closest(said, candidates)
            )
        elif connection is not None and connection.type != reference.type:
            candidates = [key for key, value in connections.items() if value and value.type == reference.type]
            yield _problem(
                source,
                where,
                "connection_type",
                f"{said} is a {connection.type} connection, a {reference.type} connection is wanted",
                f"use one of: {', '.join(candidates)}" if candidates else f"add a {reference.type} connection",
            )


def check_consumers(
    consumers: Mapping[str, ConsumerSettings],
    connections: Mapping[str, Connection | None],
    source: Source,
    registry: Registry,
) -> Iterator[Problem]:
    """Consumers by themselves and against each other."""
    for name, settings in consumers.items():
        path: KeyPath = ("pipelines", name)
        yield from _check_loops(path, settings, connections, source)
        yield from _check_chain(path, settings, source, registry)
        yield from _check_pools(path, settings, connections, source)
        yield from _check_retry(path, settings, source)
    yield from _check_groups(consumers, connections, source)


def _check_groups(
    consumers: Mapping[str, ConsumerSettings], connections: Mapping[str, Connection | None], source: Source
) -> Iterator[Problem]:
    """Two pipelines of one group would split the group's partitions between them (B013)."""
    for (first, one), (second, two) in combinations(consumers.items(), 2):
        same_cluster = _is_same_cluster(one.consume.connection, two.consume.connection, connections)
        if one.consume.group == two.consume.group and same_cluster:
            yield _problem(
                source,
                ("pipelines", second, "consume", "group"),
                "group_shared",
                f"pipelines {first!r} and {second!r} have the same group",
                "give each a group of its own, or leave `group` out",
            )


def _check_loops(
    path: KeyPath, settings: ConsumerSettings, connections: Mapping[str, Connection | None], source: Source
) -> Iterator[Problem]:
    """A pipeline must not read what it publishes: its letters, or what its handler forwards."""
    uses: list[tuple[KeyPath, PluginReference, str]] = [
        ((*path, "dead_letters", "chain", index, "topic"), sink.plugin, "a dead-letter topic")
        for index, sink in enumerate(settings.dead_letters.chain)
    ]
    uses.append(((*path, "handler", "topic"), settings.handler.plugin, "the handler's topic"))
    for where, plugin, what in uses:
        template = getattr(plugin.settings, "topic", None)
        target = next((name for _, name, found in connection_names(plugin, ()) if found.type == "kafka"), None)
        if not isinstance(template, str) or target is None:
            continue
        filled = {
            template.replace("{topic}", topic)
            .replace("{group}", settings.consume.group)
            .replace("{pipeline}", str(path[1]))
            for topic in settings.consume.topics
        }
        if filled & set(settings.consume.topics) and _is_same_cluster(target, settings.consume.connection, connections):
            yield _problem(
                source,
                where,
                "pipeline_feeds_itself",
                f"{what} is also consumed by this pipeline",
                "use another topic, or take it out of `consume.topics`",
            )


def _check_chain(path: KeyPath, settings: ConsumerSettings, source: Source, registry: Registry) -> Iterator[Problem]:
    """A letter that a sink has must survive the process: its offset passes, so nobody else keeps the record."""
    chain = settings.dead_letters.chain
    if not chain:
        yield _problem(
            source,
            (*path, "dead_letters", "chain"),
            "chain_empty",
            "there is no sink for dead letters, and none could be chosen",
            "name a sink: postgres, kafka or spool",
        )
    for index, sink in enumerate(chain):
        try:
            is_durable = getattr(registry.get("sink", sink.plugin.type).implementation, "is_durable", False)
        except PluginError:  # reported where it is named
            continue
        if not is_durable:
            yield _problem(
                source,
                (*path, "dead_letters", "chain", index, "type"),
                "chain_not_durable",
                "a letter that this sink takes would be lost with the process",
                "use a durable sink: postgres, kafka or spool",
            )


def _check_pools(
    path: KeyPath, settings: ConsumerSettings, connections: Mapping[str, Connection | None], source: Source
) -> Iterator[Problem]:
    """Handlers that wait for each other's connections are slow at best."""
    for _, name, _ in connection_names(settings.handler, ()):
        connection = connections.get(name)
        if not isinstance(connection, PostgresSettings) or connection.pool_max_size is None:
            continue
        if connection.pool_max_size < settings.consume.concurrency:
            yield _problem(
                source,
                ("connections", name, "pool_max_size"),
                "pool_too_small",
                f"the pool is smaller than `concurrency` of pipeline {path[1]!r}, whose handler uses it",
                "raise pool_max_size to the concurrency, leave it out, or lower the concurrency",
            )


def _check_retry(path: KeyPath, settings: ConsumerSettings, source: Source) -> Iterator[Problem]:
    """A total time that is over before the first retry leaves the attempts without effect."""
    retry = settings.errors.retry
    if retry.elapsed is not None and retry.attempts > 1 and retry.elapsed < retry.initial:
        yield _problem(
            source,
            (*path, "errors", "retry", "elapsed"),
            "contradiction",
            "elapsed is over before the first retry (initial)",
            "raise elapsed, or set attempts: 1",
        )


def check_relays(
    relays: Mapping[str, RelaySettings],
    connections: Mapping[str, Connection | None],
    source: Source,
    registry: Registry,
) -> Iterator[Problem]:
    """Two relays must not own the same rows; what runs in the mark's transaction comes last."""
    for name, settings in relays.items():
        yield from _check_actions(("pipelines", name), settings, source, registry)
    for (first, one), (second, two) in combinations(relays.items(), 2):
        same_database = _is_same_database(one.outbox.connection, two.outbox.connection, connections)
        if same_database and _table(one.outbox.table) == _table(two.outbox.table):
            yield _problem(
                source,
                ("pipelines", second, "outbox"),
                "rows_shared",
                f"relays {first!r} and {second!r} read the same table: each row would be published twice",
                "keep one of them, or give each a table of its own",
            )


def _check_actions(path: KeyPath, settings: RelaySettings, source: Source, registry: Registry) -> Iterator[Problem]:
    """A statement commits with the mark: nothing may still be to do after it (invariant 1)."""
    for topic, of_topic in (settings.publish.topics or {}).items():
        seen_statement = False
        for index, action in enumerate(of_topic.after_publish):
            try:
                implementation = registry.get("action", action.plugin.type).implementation
            except PluginError:  # reported where it is named
                continue
            is_statement = hasattr(implementation, "statement")
            if seen_statement and not is_statement:
                yield _problem(
                    source,
                    (*path, "publish", "topics", topic, "after_publish", index, "type"),
                    "action_order",
                    "stands after an action that commits in one transaction with the mark",
                    "move such actions (`sql`) to the end of the list",
                )
            seen_statement = seen_statement or is_statement


def _is_same_cluster(one: str, two: str, connections: Mapping[str, Connection | None]) -> bool:
    first, second = connections.get(one), connections.get(two)
    if one == two:
        return True
    if not isinstance(first, KafkaSettings) or not isinstance(second, KafkaSettings):
        return False
    return bool(set(first.bootstrap_servers) & set(second.bootstrap_servers))


def _is_same_database(one: str, two: str, connections: Mapping[str, Connection | None]) -> bool:
    first, second = connections.get(one), connections.get(two)
    if one == two:
        return True
    if not isinstance(first, PostgresSettings) or not isinstance(second, PostgresSettings):
        return False
    if first.dsn is not None and second.dsn is not None:
        return first.dsn == second.dsn
    same = ("host", "port", "database")
    return first.dsn is second.dsn and all(getattr(first, name) == getattr(second, name) for name in same)


def _table(name: str) -> tuple[str, ...]:
    """Schema and name as Postgres folds them; a name without a schema is in the default one."""
    parts: list[str] = []
    for quoted, plain in _parts(name):
        parts.append(quoted.replace('""', '"') if quoted else plain.lower())
    return tuple(parts) if len(parts) == 2 else ("public", *parts)


def _parts(name: str) -> list[tuple[str, str]]:
    return re.findall(r'"((?:[^"]|"")+)"|([^".]+)', name)


def _problem(source: Source, path: KeyPath, code: str, message: str, suggestion: str) -> Problem:
    return Problem(place=source.place(path), code=code, message=message, suggestion=suggestion, path=path)

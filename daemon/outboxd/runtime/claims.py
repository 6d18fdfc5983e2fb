"""What only one run of this process may have at a time: a consumer's group, a relay's table.

Two pipelines of one configuration never share one. But while the files change, the pipeline that had it may still drain
when the next one (renamed, or with its names swapped) is about to start: two static members of one name would fence each
other, and records that are still in hand would be handled again beside their end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from outboxd.config import PipelineSettings
from outboxd.kafka.settings import KafkaSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.postgres.settings import PostgresSettings
from outboxd.runtime.connections import ConnectionSettings

__all__ = ["Claims", "claims_of"]


def claims_of(settings: PipelineSettings, connections: ConnectionSettings) -> frozenset[str]:
    """What a pipeline claims, by each name under which somebody else could mean the same."""
    if isinstance(settings, RelaySettings):
        places = [settings.outbox.connection, *_databases(connections.get(settings.outbox.connection))]
        return frozenset(f"table {settings.outbox.table} of {place}" for place in places)
    found = connections.get(settings.consume.connection)
    addresses = found.bootstrap_servers if isinstance(found, KafkaSettings) else ()
    return frozenset(
        f"group {settings.consume.group} of {place}" for place in (settings.consume.connection, *addresses)
    )


def _databases(connection: object) -> list[str]:
    """Host, port and name of a database: without user and password, which may change while it stays the same."""
    if not isinstance(connection, PostgresSettings):
        return []
    if connection.dsn is None:
        return [f"{connection.host}:{connection.port}/{connection.database}"]
    place = urlsplit(connection.dsn.get_secret_value())
    return [f"{place.netloc.rpartition('@')[2]}{place.path}"]


class Claims:
    """Who has what. An owner is a pipeline's actor; whoever has to wait is woken when something is free again."""

    def __init__(self) -> None:
        self._owners: dict[str, object] = {}
        self._names: dict[int, str] = {}
        self._waiting: dict[int, Callable[[], None]] = {}

    def take(self, owner: object, name: str, wanted: frozenset[str], wake: Callable[[], None]) -> str | None:
        """Take all that is wanted and give None; or nothing, and give the name of the pipeline that has some of it."""
        for claim in sorted(wanted):
            holder = self._owners.get(claim, owner)
            if holder is not owner:
                self._waiting[id(owner)] = wake
                return self._names[id(holder)]
        self._waiting.pop(id(owner), None)
        self._names[id(owner)] = name
        self._owners.update(dict.fromkeys(wanted, owner))
        return None

    def release(self, owner: object) -> None:
        """Give back whatever the owner has."""
        self._owners = {claim: holder for claim, holder in self._owners.items() if holder is not owner}
        self._names.pop(id(owner), None)
        self._waiting.pop(id(owner), None)
        for wake in [*self._waiting.values()]:
            wake()

    @property
    def held(self) -> Mapping[str, str]:
        """The pipeline that has it, by claim."""
        return {claim: self._names[id(owner)] for claim, owner in self._owners.items()}

"""What a consumer run is handed by the composition root, as narrow as it uses it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol, runtime_checkable

from outboxd.ports import Admin, ConsumerPort

__all__ = ["Drain", "GroupClients", "Opens"]


class GroupClients(Protocol):
    """What this pipeline needs of a `BrokerFactory`."""

    def consumer(
        self,
        *,
        topics: Sequence[str],
        group: str,
        session_timeout: timedelta,
        rebalance_timeout: timedelta,
        max_poll_interval: timedelta,
        instance_id: str | None,
    ) -> ConsumerPort:
        """A new, unstarted member of ``group``."""
        ...

    def admin(self) -> Admin:
        """A client for questions."""
        ...


class Drain(Protocol):
    """`outboxd.pipeline.letters.drain.DrainJob`."""

    async def run(self) -> None:
        """Drain until `stop`."""
        ...

    def stop(self) -> None:
        """Finish the batch in hand and return."""
        ...


@runtime_checkable
class Opens(Protocol):
    """A plugin object with the frame that every plugin type has."""

    async def open(self) -> None:
        """Make ready."""
        ...

    async def close(self) -> None:
        """Give everything back."""
        ...

"""Lease rows and members in Postgres, judged by the database's clock alone (`outboxd.lease`, `outboxd.member`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta

from outboxd.errors import LeaseLost
from outboxd.ports import Lease, LeaseToken, Notes
from outboxd.postgres.connector import Connector
from outboxd.postgres.sql import query

__all__ = ["PostgresLeaseStore"]


class PostgresLeaseStore:
    """The port `LeaseStore` on one connection; each call is one statement."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    async def join(self, group: str, member: str, ttl: timedelta) -> int:
        """See `LeaseStore.join`."""
        row = await self._connector.fetch_row(query("member_join"), group, member, ttl.total_seconds())
        return 1 if row is None else int(row["living"])

    async def leave(self, group: str, member: str) -> None:
        """See `LeaseStore.leave`."""
        await self._connector.fetch(query("member_leave"), group, member)

    async def acquire(self, name: str, owner: str, ttl: timedelta) -> Lease | None:
        """See `LeaseStore.acquire`.

        An owner that holds the lease already gets it anew with the next epoch: its token was lost with an answer.
        """
        row = await self._connector.fetch_row(query("lease_acquire"), name, owner, ttl.total_seconds())
        if row is None:
            return None
        token = LeaseToken(name=name, owner=owner, epoch=row["epoch"])
        return Lease(token=token, notes=json.loads(row["notes"]), is_clean=row["is_clean"])

    async def renew(self, token: LeaseToken, ttl: timedelta, notes: Notes | None = None) -> None:
        """See `LeaseStore.renew`. A lease past its time that nobody took is renewed too: its epoch is still the last."""
        row = await self._connector.fetch_row(
            query("lease_renew"), token.name, token.owner, token.epoch, ttl.total_seconds(), _json(notes)
        )
        if row is None:
            raise _lost(token)

    async def verify(self, token: LeaseToken) -> None:
        """See `LeaseStore.verify`."""
        if await self._connector.fetch_row(query("lease_verify"), token.name, token.owner, token.epoch) is None:
            raise _lost(token)

    async def release(self, token: LeaseToken, notes: Notes) -> None:
        """See `LeaseStore.release`."""
        await self._connector.fetch(query("lease_release"), token.name, token.owner, token.epoch, _json(notes))

    async def owned(self, prefix: str) -> Mapping[str, tuple[str, float]]:
        """See `LeaseStore.owned`."""
        rows = await self._connector.fetch(query("lease_owned"), prefix)
        return {row["name"]: (row["owner"], row["seconds_left"]) for row in rows}


def _json(notes: Notes | None) -> str | None:
    return None if notes is None else json.dumps(dict(notes))


def _lost(token: LeaseToken) -> LeaseLost:
    return LeaseLost(f"lease {token.name} is not {token.owner}'s under epoch {token.epoch} any more")

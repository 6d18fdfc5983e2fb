"""What only Postgres has of leases: rows of members that nobody will ask for again."""

from __future__ import annotations

from outboxd.postgres.lease_store import PostgresLeaseStore
from tests.integration.postgres.conftest import TTL, Db


async def test_members_that_are_long_dead_are_removed(leases: PostgresLeaseStore, db: Db) -> None:
    for member in ("a", "b", "c"):
        await leases.join("relay:x", member, TTL)
    await db.execute("update outboxd.member set until = until - interval '5 minutes' where member = 'a'")
    await db.execute("update outboxd.member set until = until - interval '11 minutes' where member = 'b'")
    await leases.join("relay:x", "c", TTL)
    left = await db.fetch("select member from outboxd.member order by member")
    assert [row["member"] for row in left] == ["a", "c"]

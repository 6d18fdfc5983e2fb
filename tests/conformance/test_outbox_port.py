"""The port `OutboxStore`, reading: what a fetch shows of a table into which others commit."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack

import pytest

from outboxd.errors import DatabaseUnreachable
from outboxd.records import Headers
from tests.conformance.outbox_words import MIB, fetched, ids, mark, put, sent
from tests.conformance.store_world import SHARDS, StoreWorld, Writing, take
from tests.conformance.telling import conforms


@conforms
async def test_the_first_start_makes_the_relays_id_and_the_next_ones_find_it(stores: StoreWorld) -> None:
    both = (stores.outbox, stores.other.outbox)
    found = await asyncio.gather(*(both[n % 2].register(shards) for n, shards in enumerate([SHARDS, 1, 2, 64, 8])))
    assert found == [found[0]] * 5
    assert found[0].shards in {SHARDS, 1, 2, 64, 8}
    assert await stores.other.outbox.register(32) == found[0], "the number in the database wins"


@conforms
async def test_a_row_comes_as_it_was_written(relays: StoreWorld) -> None:
    headers = Headers([("a", b"1"), ("a", None), ("b", b""), ("c", b"\x00\xff")])
    written = [
        ("orders", b"key", b"\x00\xff", headers),
        ("orders", b"", b"", Headers()),
        ("orders", None, b"null", Headers()),
        ("payments", "schlüssel".encode(), None, headers),
    ]
    row_ids = [await relays.insert(*row) for row in written]
    found = (await fetched(relays.outbox)).rows
    assert [row.row_id for row in found] == row_ids
    assert [(row.topic, row.key, row.value, row.headers) for row in found] == written
    assert all((row.sent, row.defect) == (None, None) for row in found)
    assert list(await relays.outbox.pending(row_ids)) == list(found)


@conforms
async def test_an_empty_table_is_complete(relays: StoreWorld) -> None:
    found = await fetched(relays.outbox)
    assert (list(found.rows), found.is_complete) == ([], True)


@conforms
async def test_a_row_that_commits_late_comes_before_those_that_were_seen(relays: StoreWorld) -> None:
    async with relays.begin() as late, relays.begin() as lost:
        first = await late.insert("t", b"k", b"v")
        gone = await lost.insert("t", b"k", b"v")
        rest = await put(relays, 3)
        assert first < gone < rest[0]
        found = await fetched(relays.outbox)
        assert (ids(found), found.is_complete) == (rest, True)
        assert list(await relays.outbox.pending([first, gone])) == []
        await late.commit()
        await lost.rollback()
    assert ids(await fetched(relays.outbox, exclude=rest)) == [first]
    assert ids(await fetched(relays.outbox)) == [first, *rest]


class Writers:
    """Applications that write rows of two keys in each transaction, one transaction of a key at a time."""

    def __init__(self, world: StoreWorld) -> None:
        self.committed: defaultdict[bytes, list[int]] = defaultdict(list)
        self._world = world
        self._chance = random.Random(7)
        self._locks: defaultdict[bytes, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def write(self) -> None:
        for _ in range(12):
            keys = sorted({b"k%d" % self._chance.randrange(4) for _ in range(2)})
            async with AsyncExitStack() as held:
                for key in keys:
                    await held.enter_async_context(self._locks[key])
                transaction = await held.enter_async_context(self._world.begin())
                await self._fill(transaction, keys)

    async def _fill(self, transaction: Writing, keys: Sequence[bytes]) -> None:
        row_ids = [await transaction.insert("t", key, b"v") for key in keys]
        await asyncio.sleep(self._chance.random() * 0.005)
        if self._chance.random() < 0.2:
            await transaction.rollback()
            return
        await transaction.commit()
        for key, row_id in zip(keys, row_ids, strict=True):
            self.committed[key].append(row_id)


@conforms
async def test_every_fetch_is_one_moment_of_the_table(relays: StoreWorld) -> None:
    """Who sees a row sees every earlier one of its key, and all that was committed before it asked."""
    writers = Writers(relays)
    writing = [asyncio.ensure_future(writers.write()) for _ in range(4)]
    looks = 0
    while not all(task.done() for task in writing):
        looks += 1
        before = {key: len(row_ids) for key, row_ids in writers.committed.items()}
        found = await fetched(relays.outbox, rows=1000)
        assert ids(found) == sorted(ids(found))
        await asyncio.sleep(0.001)  # a writer may know of its commit a little later than the reader
        seen: defaultdict[bytes, list[int]] = defaultdict(list)
        for row in found.rows:
            seen[row.key or b""].append(row.row_id)
        for key, row_ids in writers.committed.items():
            assert len(seen[key]) >= before.get(key, 0)
            later = [row_id for row_id in row_ids if row_id not in seen[key]]
            assert not seen[key] or not later or later[0] > seen[key][-1], "an earlier row of this key is missing"
    await asyncio.gather(*writing)
    assert looks > 5
    assert {row_id for row_ids in writers.committed.values() for row_id in row_ids} == set(
        ids(await fetched(relays.outbox, rows=1000))
    )


@conforms
async def test_every_row_is_in_one_shard_and_a_keys_rows_are_together_in_order(relays: StoreWorld) -> None:
    for number in range(60):
        await relays.insert("t", b"k%d" % (number % 10) if number % 5 else None, b"")
    whole = (await fetched(relays.outbox, rows=500)).rows
    parts = [(await fetched(relays.outbox, rows=500, shards=[number])).rows for number in range(SHARDS)]
    assert len(whole) == 60
    assert sorted(row.row_id for part in parts for row in part) == [row.row_id for row in whole]
    shards: defaultdict[bytes | None, set[int]] = defaultdict(set)
    for number, part in enumerate(parts):
        assert [row.row_id for row in part] == sorted(row.row_id for row in part)
        assert {row.shard for row in part} <= {number}
        for row in part:
            shards[row.key].add(number)
    assert len(shards.pop(None)) > 1, "rows without a key are spread"
    assert {len(found) for found in shards.values()} == {1}
    assert ids(await fetched(relays.outbox, shards=[])) == []


@conforms
async def test_fetching_is_bounded_by_rows_and_by_bytes_and_gives_at_least_one(relays: StoreWorld) -> None:
    rows = [await relays.insert("t", b"k", b"x" * 100_000) for _ in range(8)]
    for limit, size, count in ((5, MIB, 5), (100, 350_000, 4), (100, 50_000, 1), (100, 1, 1), (100, 0, 1), (1, MIB, 1)):
        found = await fetched(relays.outbox, rows=limit, size=size)
        assert (ids(found), found.is_complete) == (rows[:count], False), (limit, size)
    found = await fetched(relays.outbox, size=10 * MIB)
    assert (ids(found), found.is_complete) == (rows, True)


@conforms
async def test_a_fetch_that_met_a_limit_does_not_claim_to_be_complete(relays: StoreWorld) -> None:
    rows = await put(relays, 4)
    assert not (await fetched(relays.outbox, rows=3)).is_complete
    assert not (await fetched(relays.outbox, rows=4)).is_complete, "there may be more: it did not look further"
    assert (await fetched(relays.outbox, rows=5)).is_complete
    assert (await fetched(relays.outbox, exclude=rows[:2], rows=3)).is_complete


@conforms
async def test_headers_and_keys_count_as_bytes_too(relays: StoreWorld) -> None:
    chance = random.Random(1)  # nothing that could be stored in less
    for topic, key, headers in (
        ("keys", chance.randbytes(2000).hex().encode(), Headers()),
        ("headers", b"k", Headers([("h", chance.randbytes(2000))])),
    ):
        rows = [await relays.insert(topic, key, b"", headers) for _ in range(3)]
        other = "headers" if topic == "keys" else "keys"
        found = await relays.outbox.fetch(
            shards=range(SHARDS), exclude=(), max_rows=9, max_bytes=1000, skip_topics=[other]
        )
        assert ids(found) == rows[:1]


@conforms
async def test_excluded_rows_paused_topics_and_blocked_keys_stay_where_they_are(relays: StoreWorld) -> None:
    written: list[tuple[str, bytes | None]] = [
        ("a", b"1"),
        ("a", b"2"),
        ("b", b"1"),
        ("b", None),
        ("c", b"1"),
        ("c", None),
    ]
    rows = [await relays.insert(topic, key, b"") for topic, key in written]
    store = relays.outbox

    async def left(**skipped: Collection[object]) -> list[int]:
        found = await store.fetch(shards=range(SHARDS), exclude=(), max_rows=9, max_bytes=MIB, **skipped)  # type: ignore[arg-type]
        assert found.is_complete
        return [rows.index(row.row_id) for row in found.rows]

    assert await left(skip_topics=["c"]) == [0, 1, 2, 3]
    assert await left(skip_keys=[("a", b"2"), ("b", b"1")]) == [0, 3, 4, 5]
    assert await left(skip_topics=["c"], skip_keys=[("a", b"2"), ("b", b"1"), ("c", b"1")]) == [0, 3]
    found = await store.fetch(
        shards=range(SHARDS), exclude=rows[:2], max_rows=2, max_bytes=MIB, skip_topics=["b"], skip_keys=[("c", b"1")]
    )
    assert ids(found) == rows[5:], "what is left out takes no room"


@conforms
async def test_pending_gives_whole_rows_in_row_order_each_once(relays: StoreWorld) -> None:
    rows = await put(relays, 4)
    lease = await take(relays.leases)
    await relays.outbox.stage(lease, [sent(rows[2])])
    await mark(relays.outbox, lease, rows[:1])
    found = await relays.outbox.pending([rows[3], rows[2], rows[0], rows[3], 10**12])
    assert [row.row_id for row in found] == [rows[2], rows[3]]
    assert found[0].sent == sent(rows[2]).sent
    assert (found[1].value, found[1].sent) == (b"v3", None)
    assert list(await relays.outbox.pending([])) == []


@conforms
async def test_the_oldest_pending_row_has_an_age_since_it_was_written(relays: StoreWorld) -> None:
    assert await relays.outbox.oldest_pending() is None
    (first,) = await put(relays)
    await relays.later(100)
    (second,) = await put(relays)
    assert 100 <= (await relays.outbox.oldest_pending() or 0) < 160
    await relays.later(10)
    lease = await take(relays.leases)
    await mark(relays.outbox, lease, [first])
    assert 10 <= (await relays.outbox.oldest_pending() or 0) < 70
    await mark(relays.outbox, lease, [second])
    assert await relays.outbox.oldest_pending() is None
    async with relays.begin() as late:
        await late.insert("t", b"k", b"v")
        await asyncio.sleep(0.3)
        assert await relays.outbox.oldest_pending() is None
        await late.commit()
    assert (await relays.outbox.oldest_pending() or 0) >= 0.25


@conforms
async def test_while_the_server_is_away_every_call_says_so_and_nothing_is_changed(relays: StoreWorld) -> None:
    rows = await put(relays, 2)
    lease = await take(relays.leases)
    store = relays.outbox
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: store.register(SHARDS),
        lambda: fetched(store),
        lambda: store.pending(rows),
        lambda: mark(store, lease, rows),
        lambda: mark(store, lease, rows, [relays.entry(1)]),
        lambda: store.stage(lease, [sent(rows[0])]),
        store.oldest_pending,
    ]
    relays.go_down()
    for call in calls:
        with pytest.raises(DatabaseUnreachable):
            await call()
    relays.come_up()
    assert ids(await fetched(store)) == rows
    assert (await relays.staged(), await relays.ledger()) == ([], [])

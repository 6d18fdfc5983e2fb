"""The handler of these tests: refuses some records for good, some for a while, and writes down the others."""

from __future__ import annotations

import os
from collections import Counter

import asyncpg

from outboxd.api import Record

__all__ = ["NotNow", "NotWanted", "fails", "take_all", "take_or_refuse"]

_FAILURES_OF_A_SLOW_ONE = 2
_calls: Counter[tuple[int, int]] = Counter()
_pools: list[asyncpg.Pool[asyncpg.Record]] = []


class NotWanted(Exception):
    """The handler will never have this record."""


class NotNow(Exception):
    """The handler has it at a later call."""


def fails(number: int) -> bool:
    """Whether the record of this number is refused for good: one of twenty."""
    return number % 20 == 0


def _is_slow(number: int) -> bool:
    return number % 20 == 1


async def take_or_refuse(record: Record) -> None:
    """Judge the record by the number that is its value, and take it."""
    number = int(str(record.value))
    if fails(number):
        raise NotWanted(f"{number}")
    place = (record.partition, record.offset)
    # Counted here and not by `record.attempt`: what is given back after an outage is no attempt, and was a call.
    if _is_slow(number) and _calls[place] < _FAILURES_OF_A_SLOW_ONE:
        _calls[place] += 1
        raise NotNow(f"{number}")
    await take_all(record)
    _calls.pop(place, None)


async def take_all(record: Record) -> None:
    """Write the record down, in a transaction of its own."""
    if not _pools:
        pool = asyncpg.create_pool(
            os.environ["CHAOS_DSN"], min_size=0, max_size=8, timeout=2, command_timeout=3, statement_cache_size=0
        )
        _pools.append(pool)
    pool = await _pools[0]
    async with pool.acquire(timeout=2) as connection:
        await connection.execute(
            'insert into outboxd_chaos.handled (topic, partition, "offset", key) values ($1, $2, $3, $4)',
            record.topic,
            record.partition,
            record.offset,
            None if record.key is None else record.key.decode(),
        )

"""What the benchmarks conclude from what they read: a fault in a log is seen, a sample is put where it belongs."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.payload import BYTES, number, value
from bench.readers import Load
from bench.stacks import CONSUMER, RELAY, read_stacks
from bench.topic_log import _told
from bench.watching import quantile

LOOP = "main (outboxd/cli/app.py:67);run (outboxd/runtime/loop.py:42)"


@pytest.mark.parametrize("n", [0, 7, 12_345, 599_999])
def test_every_value_has_the_same_size_and_tells_its_number(n: int) -> None:
    assert len(value(n)) == BYTES
    assert number(value(n)) == n


def test_a_whole_log_has_no_faults_and_the_rate_of_the_rows_after_the_first_append() -> None:
    stamps = Counter({1_000: 40, 1_500: 30, 2_000: 30})
    log = _told(100, Counter(range(100)), stamps, 0)
    assert (log.missing, log.extra, log.seconds, log.rate) == (0, 0, 1.0, 60)


def test_a_row_that_is_not_there_is_missing_and_one_that_came_twice_is_extra() -> None:
    seen = Counter(range(100))
    del seen[17]
    seen[18] += 2
    log = _told(100, seen, Counter({1_000: 101}), 3)
    assert (log.missing, log.extra, log.out_of_order) == (1, 2, 3)


def test_a_record_that_is_none_of_the_rows_is_extra_and_makes_up_for_none() -> None:
    seen = Counter([*range(99), 100])
    log = _told(100, seen, Counter({1_000: 100}), 0)
    assert (log.missing, log.extra) == (1, 1)


def test_the_offsets_of_a_load_have_one_sum() -> None:
    load = Load(topic="t", partitions=(3, 0, 2))
    assert load.records == 5
    assert load.offsets == 0 + 1 + 2 + 0 + 1


def test_a_quantile_is_one_of_the_values() -> None:
    waits = [float(n) for n in range(1, 101)]
    assert [quantile(waits, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    with pytest.raises(ValueError, match="none of the rows"):
        quantile([], 0.5)


@pytest.mark.parametrize(
    ("frames", "group"),
    [
        (
            "Reader._read (outboxd/pipeline/relay/reading.py:9);fetch (outboxd/postgres/outbox_store.py:1)",
            "fetch and decode",
        ),
        (
            "Lane._publish (outboxd/pipeline/relay/lane.py:1);build_batch (outboxd/kafka/batch.py:36)",
            "build records and batches",
        ),
        ("Lane._publish (outboxd/pipeline/relay/lane.py:1);send (aiokafka/producer/sender.py:2)", "send"),
        (
            "Holding.admit (outboxd/pipeline/relay/holding.py:1);gc_collect_main (libpython3.11.so.1.0)",
            "garbage collection",
        ),
        ("Holding.admit (outboxd/pipeline/relay/holding.py:1)", "shards, lanes, bookkeeping"),
        ("Marker.run (outboxd/pipeline/relay/marking.py:1);fetch (asyncpg/connection.py:5)", "mark"),
    ],
)
def test_a_sample_of_the_relay_belongs_to_what_it_was_doing(frames: str, group: str) -> None:
    assert read_stacks(f"{LOOP};{frames} 3\n", RELAY).groups == {group: 3}


def test_samples_of_waiting_of_other_threads_and_of_the_start_do_not_count() -> None:
    waiting = f"{LOOP};uv__io_poll (linux.c:1);0x7f00 (libc.so.6) 5"
    thread = "Thread.run (threading.py:982);Condition.wait (threading.py:331) 7"
    start = f"{LOOP};_find_and_load (<frozen importlib._bootstrap>:1176);<module> (asyncpg/__init__.py:1) 9"
    work = f"{LOOP};Workers._work (outboxd/pipeline/consumer/workers.py:17) 4"
    found = read_stacks(f"{waiting}\n{thread}\n{start}\n{work}\n", CONSUMER)
    assert found.samples == 4
    assert found.functions == {"Workers._work (outboxd/pipeline/consumer/workers.py)": 4}
    assert "  20.00  100.0%  lanes and workers" in found.text(20.0)

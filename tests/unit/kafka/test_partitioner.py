"""Keys go where the Java client sends them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from outboxd.kafka.partitioner import murmur2, partition_of

LINES = Path(__file__).with_name("murmur2.csv").read_text("ascii").splitlines()
GOLDEN = list(csv.DictReader(line for line in LINES if not line.startswith("#")))


@pytest.mark.fixes("B020")
@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: row["key_hex"][:16] or "empty")
def test_every_key_has_the_partition_that_the_java_client_gives_it(row: dict[str, str]) -> None:
    key = bytes.fromhex(row["key_hex"])
    assert murmur2(key) == int(row["murmur2"]) & 0xFFFFFFFF
    for partitions in (1, 3, 6, 12, 64):
        assert partition_of(key, partitions) == int(row[f"partitions_{partitions}"])


def test_the_golden_values_are_there() -> None:
    assert len(GOLDEN) >= 80
    assert any(row["key_hex"] == "" for row in GOLDEN)

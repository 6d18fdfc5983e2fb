"""What a row must be to become a record of its topic."""

from __future__ import annotations

import pytest

from outboxd.pipeline.relay.rows import record_size, row_fault
from outboxd.ports import TopicInfo
from outboxd.records import OutboxRow

NOW = 1_700_000_000_000
DAY = 86_400_000


def fault_of(timestamp: int | None, topic: TopicInfo) -> str | None:
    row = OutboxRow(row_id=1, shard=0, topic="t", key=b"k", value=b"v", timestamp=timestamp)
    fault = row_fault(row, topic, NOW, size=record_size(row), is_compressed=False)
    return None if fault is None else str(fault)


@pytest.mark.fixes("B029")
@pytest.mark.parametrize(
    ("timestamp", "said"),
    [
        (None, None),
        (0, None),
        (NOW, None),
        (NOW + 1000 * DAY, None),
        (-1, "before 1970"),
        (-62_000_000_000_000, "before 1970"),
        (2**63 - 1, "behind the year 9999"),
    ],
)
def test_a_timestamp_that_cannot_be_is_the_fault_of_its_row_in_any_topic(
    timestamp: int | None, said: str | None
) -> None:
    fault = fault_of(timestamp, TopicInfo(name="t", partitions=1))
    assert (fault is None) if said is None else said in (fault or "")


def test_a_topic_may_have_limits_of_its_own() -> None:
    topic = TopicInfo(name="t", partitions=1, timestamp_before_max=DAY, timestamp_after_max=DAY)
    assert fault_of(NOW - DAY, topic) is None
    assert "older" in (fault_of(NOW - DAY - 1, topic) or "")
    assert fault_of(NOW + DAY, topic) is None
    assert "further ahead" in (fault_of(NOW + DAY + 1, topic) or "")

"""Headers keep order and duplicates, as Kafka does."""

from __future__ import annotations

from outboxd.records import NO_HEADERS, Headers, TopicPartition

HEADERS = Headers([("a", b"1"), ("b", None), ("a", b"2"), ("outboxd-id", b"x")])


def test_the_last_header_of_a_name_is_the_one_that_get_gives() -> None:
    assert HEADERS.get("a") == b"2"
    assert HEADERS.get("b", b"default") is None
    assert HEADERS.get("c", b"default") == b"default"
    assert NO_HEADERS.get("a") is None


def test_all_headers_of_a_name_are_given_in_order() -> None:
    assert HEADERS.get_all("a") == [b"1", b"2"]


def test_headers_are_taken_out_by_prefix() -> None:
    assert HEADERS.without("outboxd-") == Headers([("a", b"1"), ("b", None), ("a", b"2")])


def test_a_partition_reads_as_kafka_writes_it() -> None:
    assert str(TopicPartition("orders.new", 3)) == "orders.new-3"

"""Every error of the client library means something decided."""

from __future__ import annotations

import inspect

import aiokafka.errors as kafka
import pytest

from outboxd.errors import (
    AssignmentLost,
    BrokerDenied,
    BrokerError,
    BrokerUnreachable,
    FetchUndecodable,
    OffsetOutOfRange,
    ProducerFenced,
    ProducerWedged,
    RecordRejected,
    SendOutcomeUnknown,
    TopicDenied,
    TopicUnknown,
)
from outboxd.kafka.translation import MEANING, translate, translate_send

CLASSES = [
    found
    for _, found in inspect.getmembers(kafka, inspect.isclass)
    if issubclass(found, kafka.KafkaError) and found.__module__ == kafka.__name__
]


def test_no_error_of_the_library_is_left_to_chance() -> None:
    assert {found.__name__ for found in CLASSES if found not in MEANING} == set()


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (kafka.NotLeaderForPartitionError(), BrokerUnreachable),
        (kafka.KafkaTimeoutError(), BrokerUnreachable),
        (ConnectionRefusedError(), BrokerUnreachable),
        (TimeoutError(), BrokerUnreachable),
        (kafka.GroupAuthorizationFailedError("g"), BrokerDenied),
        (kafka.CommitFailedError(), AssignmentLost),
        (kafka.IllegalStateError("not assigned"), AssignmentLost),
        (kafka.MessageSizeTooLargeError(), RecordRejected),
        (kafka.InvalidTimestampError(), RecordRejected),
        (kafka.OutOfOrderSequenceNumber(), ProducerWedged),
        (kafka.ProducerFenced(), ProducerFenced),
        (kafka.InvalidProducerEpoch(), ProducerFenced),
        (kafka.UnknownTopicOrPartitionError("t"), TopicUnknown),
        (kafka.TopicAuthorizationFailedError("t"), TopicDenied),
        (kafka.OffsetOutOfRangeError({}), OffsetOutOfRange),
        (kafka.CorruptRecordException(), FetchUndecodable),
        (kafka.UnsupportedCodecError(), FetchUndecodable),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), FetchUndecodable),
    ],
)
def test_an_error_becomes_what_it_means(error: Exception, meaning: type[BrokerError]) -> None:
    translated = translate(error, doing="do it", topic="t")
    assert type(translated) is meaning
    assert "could not do it" in translated.message


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (kafka.RequestTimedOutError(), SendOutcomeUnknown),
        (kafka.NotLeaderForPartitionError(), SendOutcomeUnknown),
        (kafka.NotEnoughReplicasAfterAppendError(), SendOutcomeUnknown),
        (kafka.UnknownError(), SendOutcomeUnknown),
        (kafka.MessageSizeTooLargeError(), RecordRejected),
        (kafka.OutOfOrderSequenceNumber(), ProducerWedged),
        (kafka.ProducerFenced(), ProducerFenced),
        (kafka.TopicAuthorizationFailedError("t"), TopicDenied),
    ],
)
def test_a_batch_that_is_not_surely_refused_may_have_been_written(error: Exception, meaning: type[BrokerError]) -> None:
    assert type(translate_send(error, doing="send", topic="t")) is meaning

"""Translates aiokafka's errors into outboxd's where they enter.

Every error class of aiokafka stands in the table below; a test fails when the library grows one that is not decided.
"""

from __future__ import annotations

from typing import Final

import aiokafka.errors as kafka

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
    TopicError,
    TopicUnknown,
)

__all__ = ["MEANING", "translate", "translate_send"]

_OUTAGE: Final = (
    kafka.BrokerNotAvailableError,
    kafka.Cancelled,
    kafka.ConcurrentTransactions,
    kafka.CorrelationIdError,
    kafka.FetchSessionIdNotFound,
    kafka.GroupCoordinatorNotAvailableError,
    kafka.GroupLoadInProgressError,
    kafka.InvalidFetchSessionEpoch,
    kafka.KafkaConnectionError,
    kafka.KafkaProtocolError,
    kafka.KafkaStorageError,
    kafka.KafkaTimeoutError,
    kafka.KafkaUnavailableError,
    kafka.LeaderNotAvailableError,
    kafka.ListenerNotFound,
    kafka.LogDirNotFound,
    kafka.MetadataEmptyBrokerList,
    kafka.NoBrokersAvailable,
    kafka.NodeNotReadyError,
    kafka.NotControllerError,
    kafka.NotCoordinatorForGroupError,
    kafka.NotEnoughReplicasAfterAppendError,
    kafka.NotEnoughReplicasError,
    kafka.NotLeaderForPartitionError,
    kafka.OperationNotAttempted,
    kafka.QuotaViolationError,
    kafka.ReassignmentInProgress,
    kafka.ReplicaNotAvailableError,
    kafka.RequestTimedOutError,
    kafka.StaleControllerEpochError,
    kafka.StaleLeaderEpochCodeError,
    kafka.StaleMetadata,
    kafka.TooManyInFlightRequests,
    kafka.TransactionCoordinatorFenced,
)
_DENIED: Final = (
    kafka.AuthenticationFailedError,
    kafka.AuthenticationMethodNotSupported,
    kafka.ClusterAuthorizationFailedError,
    kafka.DelegationTokenAuthDisabled,
    kafka.DelegationTokenAuthorizationFailed,
    kafka.DelegationTokenExpired,
    kafka.DelegationTokenNotFound,
    kafka.DelegationTokenOwnerMismatch,
    kafka.DelegationTokenRequestNotAllowed,
    kafka.GroupAuthorizationFailedError,
    kafka.IllegalSaslStateError,
    kafka.InvalidPrincipalType,
    kafka.SaslAuthenticationFailed,
    kafka.SecurityDisabled,
    kafka.TransactionalIdAuthorizationFailed,
    kafka.UnsupportedSaslMechanismError,
)
_LOST: Final = (
    kafka.CommitFailedError,
    kafka.ConsumerStoppedError,
    kafka.IllegalGenerationError,
    kafka.IllegalStateError,
    kafka.MemberIdRequired,
    kafka.RebalanceInProgressError,
    kafka.UnknownMemberIdError,
)
_REJECTED: Final = (
    kafka.InvalidTimestampError,
    kafka.MessageSizeTooLargeError,
    kafka.RecordListTooLargeError,
)
_FENCED: Final = (
    kafka.InvalidProducerEpoch,
    kafka.InvalidProducerIdMapping,
    kafka.ProducerFenced,
)
_WEDGED: Final = (
    kafka.DuplicateSequenceNumber,
    kafka.IllegalOperation,
    kafka.InvalidTxnState,
    kafka.OutOfOrderSequenceNumber,
    kafka.ProducerClosed,
    kafka.UnknownProducerId,
)
_UNDECODABLE: Final = (
    kafka.CorruptRecordException,
    kafka.RecordTooLargeError,
    kafka.UnsupportedCodecError,
)
# Neither an outage nor one record's fault: a request that this broker will never grant. BrokerError tells it as it is.
_REFUSED: Final = (
    kafka.BrokerResponseError,
    kafka.GroupIdNotFound,
    kafka.IllegalArgumentError,
    kafka.IncompatibleBrokerVersion,
    kafka.InconsistentGroupProtocolError,
    kafka.InvalidCommitOffsetSizeError,
    kafka.InvalidConfigurationError,
    kafka.InvalidFetchRequestError,
    kafka.InvalidGroupIdError,
    kafka.InvalidPartitionsError,
    kafka.InvalidReplicationAssignmentError,
    kafka.InvalidReplicationFactorError,
    kafka.InvalidRequestError,
    kafka.InvalidRequiredAcksError,
    kafka.InvalidSessionTimeoutError,
    kafka.InvalidTransactionTimeout,
    kafka.KafkaConfigurationError,
    kafka.KafkaError,
    kafka.NoError,
    kafka.NonEmptyGroup,
    kafka.OffsetMetadataTooLargeError,
    kafka.PolicyViolationError,
    kafka.TopicAlreadyExistsError,
    kafka.UnknownError,
    kafka.UnrecognizedBrokerVersion,
    kafka.UnsupportedForMessageFormatError,
    kafka.UnsupportedVersionError,
)

MEANING: Final[dict[type[Exception], type[BrokerError]]] = {
    **dict.fromkeys(_OUTAGE, BrokerUnreachable),
    **dict.fromkeys(_DENIED, BrokerDenied),
    **dict.fromkeys(_LOST, AssignmentLost),
    **dict.fromkeys(_REJECTED, RecordRejected),
    **dict.fromkeys(_FENCED, ProducerFenced),
    **dict.fromkeys(_WEDGED, ProducerWedged),
    **dict.fromkeys(_UNDECODABLE, FetchUndecodable),
    **dict.fromkeys(_REFUSED, BrokerError),
    kafka.UnknownTopicOrPartitionError: TopicUnknown,
    kafka.InvalidTopicError: TopicUnknown,
    kafka.TopicAuthorizationFailedError: TopicDenied,
    kafka.OffsetOutOfRangeError: OffsetOutOfRange,
    kafka.NoOffsetForPartitionError: OffsetOutOfRange,
}
"""What each aiokafka error means to outboxd; looked up along the class's ancestors, most specific first."""

_REMEDY: Final[dict[type[BrokerError], str]] = {
    BrokerUnreachable: "Check bootstrap_servers, the listener's address and whether the brokers run.",
    BrokerDenied: "Check the connection's `security` section and this user's ACLs.",
    ProducerFenced: "Another owner has taken over; this one gives the shard up.",
    RecordRejected: "Check the topic's max.message.bytes and message.timestamp.* against the record.",
}


def translate(error: BaseException, *, doing: str, topic: str | None = None) -> BrokerError:
    """The error of outboxd for one of aiokafka; the caller raises it ``from`` the original.

    ``doing`` says what failed, for people ("read the end offset of orders-3"). ``topic`` names the topic where there is
    one. A failed decode inside the client (a header name that is not UTF-8) is FetchUndecodable.
    """
    meaning = _meaning(error)
    detail = str(error) or type(error).__name__
    message = f"could not {doing}: {type(error).__name__}: {detail}"
    if issubclass(meaning, TopicError):
        return meaning(message, topic=topic or _topic_in(error), suggestion=_topic_remedy(meaning))
    return meaning(message, suggestion=_REMEDY.get(meaning))


def translate_send(error: BaseException, *, doing: str, topic: str) -> BrokerError:
    """The same for a batch that was handed to the client: what is not surely refused may have been written."""
    translated = translate(error, doing=doing, topic=topic)
    match translated:
        case RecordRejected() | TopicError() | ProducerFenced() | ProducerWedged():
            return translated
        case _:
            return SendOutcomeUnknown(translated.message, suggestion="Fence, read the topic's tail, then send again.")


def _meaning(error: BaseException) -> type[BrokerError]:
    if isinstance(error, UnicodeDecodeError):
        return FetchUndecodable
    if isinstance(error, OSError):  # TimeoutError among them
        return BrokerUnreachable
    for ancestor in type(error).__mro__:
        if ancestor in MEANING:
            return MEANING[ancestor]
    return BrokerError


def _topic_in(error: BaseException) -> str:
    """The library passes the topic's name as the error's first argument, where it passes anything."""
    return str(error.args[0]) if error.args else "?"


def _topic_remedy(meaning: type[TopicError]) -> str:
    if meaning is TopicDenied:
        return "Give this user the topic's Describe, Read or Write ACL."
    return "Create the topic, or correct its name."

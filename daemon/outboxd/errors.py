"""Every error of outboxd, in one tree.

    OutboxdError
    ├── ConfigurationError             what the operator wrote cannot be carried out
    │   └── NotAvailableYet            a known key whose feature is not built yet
    ├── PluginError
    │   ├── PluginUnknown              a name in the YAML that nothing registered
    │   ├── PluginClash                two distributions registered one name
    │   └── PluginBroken               a plugin that cannot be loaded or opened
    ├── BrokerError
    │   ├── BrokerUnreachable          no broker, no leader, no answer in time: an outage
    │   ├── BrokerDenied               authentication or authorisation of the whole client
    │   ├── SendOutcomeUnknown         a batch may or may not be in the log
    │   ├── ProducerFenced             a newer epoch of this transactional id exists
    │   ├── ProducerWedged             the partition's sequence is broken; needs a new producer
    │   ├── RecordRejected             the broker refuses this record for what it is
    │   ├── TopicError
    │   │   ├── TopicUnknown
    │   │   └── TopicDenied
    │   ├── AssignmentLost             a commit or seek for partitions that moved on
    │   ├── OffsetOutOfRange           the position is outside the log
    │   └── FetchUndecodable           a batch that the client cannot decode
    ├── DatabaseError
    │   ├── DatabaseUnreachable        refused, lost, read-only or silent past the deadline: an outage
    │   ├── DatabaseDenied             credentials or privileges
    │   ├── SchemaBehind               `outboxd migrate` has not been run
    │   └── StatementFailed            the statement itself failed; has a SQLSTATE
    ├── LeaseLost                      somebody else owns the shard or job now
    ├── RecordError                    belongs to one record, never to the pipeline
    │   ├── Undecodable                a codec cannot read the value
    │   ├── HandlerTimeout             the handler's own deadline passed
    │   └── ActionTimeout              an action's own deadline passed
    ├── LetterError
    │   ├── SinkUnavailable            a dead-letter sink cannot take letters now
    │   ├── ChainExhausted             no sink of the chain has the letter
    │   ├── LetterUnknown              no letter with that id
    │   └── MoveRefused                a move between statuses that the life cycle forbids
    ├── PipelineUnknown                no pipeline with that name
    ├── PipelineStopped                a rule or a policy said `stop`
    ├── DevServerFailed                a local Kafka or Postgres for development
    └── StateConflict                  a state machine was asked for an edge it does not have

Foreign errors are translated where they enter (`outboxd.kafka`, `outboxd.postgres`), most specific first, with
``raise ... from error``; nothing above those packages catches a driver's own exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Literal
from uuid import UUID

__all__ = [
    "ActionTimeout",
    "AssignmentLost",
    "BrokerDenied",
    "BrokerError",
    "BrokerUnreachable",
    "ChainExhausted",
    "ConfigurationError",
    "DatabaseDenied",
    "DatabaseError",
    "DatabaseUnreachable",
    "DevServerFailed",
    "FetchUndecodable",
    "HandlerTimeout",
    "LeaseLost",
    "LetterError",
    "LetterUnknown",
    "MoveRefused",
    "NotAvailableYet",
    "OffsetOutOfRange",
    "OutboxdError",
    "PipelineStopped",
    "PipelineUnknown",
    "PluginBroken",
    "PluginClash",
    "PluginError",
    "PluginUnknown",
    "ProducerFenced",
    "ProducerWedged",
    "RecordError",
    "RecordRejected",
    "SchemaBehind",
    "SendOutcomeUnknown",
    "SinkUnavailable",
    "StateConflict",
    "StatementFailed",
    "TopicDenied",
    "TopicError",
    "TopicUnknown",
    "Undecodable",
]


class OutboxdError(Exception):
    """An error with a stable code and, where there is one, the remedy.

    ``code`` is stable and machine-readable (snake_case); ``retriable`` says whether the same call may succeed later
    without anybody changing anything; ``suggestion`` is one sentence that says what to do.
    """

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False

    def __init__(self, message: str, *, suggestion: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.suggestion = suggestion

    def __str__(self) -> str:
        return self.message

    @property
    def told(self) -> str:
        """What happened and what to do about it, for people."""
        return self.message if self.suggestion is None else f"{self.message}: {self.suggestion}"


class ConfigurationError(OutboxdError):
    """The configuration cannot be carried out; `outboxd check` shows every such error with its place."""

    code = "configuration_invalid"


class NotAvailableYet(ConfigurationError):
    """The key is part of the configuration's language, but this version cannot do it yet."""

    code = "not_available_yet"


class PluginError(OutboxdError):
    """A plugin cannot be used."""

    code = "plugin_failed"


class PluginUnknown(PluginError):
    """No installed distribution registers this name; `outboxd plugins list` shows what is installed."""

    code = "plugin_unknown"


class PluginClash(PluginError):
    """Two distributions register the same name for one kind; uninstall one of them."""

    code = "plugin_clash"


class PluginBroken(PluginError):
    """The plugin raised while it was loaded or opened, or its API version does not fit."""

    code = "plugin_broken"


class BrokerError(OutboxdError):
    """Kafka answered with an error, or not at all."""

    code = "broker_failed"


class BrokerUnreachable(BrokerError):
    """No broker, no leader or no answer within the deadline. An outage: it costs no attempts (invariant 5)."""

    code = "broker_unreachable"
    retriable = True


class BrokerDenied(BrokerError):
    """The broker refuses this client: credentials, TLS or cluster-wide authorisation."""

    code = "broker_denied"


class SendOutcomeUnknown(BrokerError):
    """The batch may be in the log, may come to be in it later, or may not. Only fencing settles it."""

    code = "send_outcome_unknown"
    retriable = True


class ProducerFenced(BrokerError):
    """A producer with a newer epoch of the same transactional id exists: another owner has taken over."""

    code = "producer_fenced"


class ProducerWedged(BrokerError):
    """The partition's sequence is broken or the client's sender task died; only a new producer object helps."""

    code = "producer_wedged"
    retriable = True


class RecordRejected(BrokerError):
    """The broker refuses the batch for what a record in it is: its size or its timestamp. Nothing was written."""

    code = "record_rejected"


class TopicError(BrokerError):
    """An error of one topic; other topics are not affected."""

    code = "topic_failed"

    def __init__(self, message: str, *, topic: str, suggestion: str | None = None) -> None:
        super().__init__(message, suggestion=suggestion)
        self.topic = topic


class TopicUnknown(TopicError):
    """The topic does not exist (any more)."""

    code = "topic_unknown"
    retriable = True


class TopicDenied(TopicError):
    """This client may not use the topic."""

    code = "topic_denied"


class AssignmentLost(BrokerError):
    """The partitions belong to another member now: their records are delivered elsewhere. No error of a record."""

    code = "assignment_lost"


class OffsetOutOfRange(BrokerError):
    """The wanted offset is not in the log: trimmed by retention, or the topic was made anew."""

    code = "offset_out_of_range"


class FetchUndecodable(BrokerError):
    """The client cannot decode the batch at the current position."""

    code = "fetch_undecodable"


class DatabaseError(OutboxdError):
    """Postgres answered with an error, or not at all."""

    code = "database_failed"


class DatabaseUnreachable(DatabaseError):
    """Refused, connection lost, read-only or silent past the deadline. An outage: it costs no attempts (invariant 5)."""

    code = "database_unreachable"
    retriable = True


class DatabaseDenied(DatabaseError):
    """Wrong credentials, unknown database, or a privilege is missing."""

    code = "database_denied"


class SchemaBehind(DatabaseError):
    """The schema `outboxd` is missing or older than this version needs; run `outboxd migrate -c PATH`."""

    code = "schema_behind"
    retriable = True


class StatementFailed(DatabaseError):
    """The statement failed for a reason of its own; ``sqlstate`` is Postgres's five-character code."""

    code = "statement_failed"

    def __init__(self, message: str, *, sqlstate: str | None, suggestion: str | None = None) -> None:
        super().__init__(message, suggestion=suggestion)
        self.sqlstate = sqlstate


class LeaseLost(OutboxdError):
    """The lease has another owner or epoch; what was done under it must be dropped, not finished."""

    code = "lease_lost"


class RecordError(OutboxdError):
    """An error of one record, to be classified; never one of the pipeline."""

    code = "record_failed"


class Undecodable(RecordError):
    """The codec cannot make a value of the record's bytes. Stage `decode`."""

    code = "undecodable"


class HandlerTimeout(RecordError):
    """The handler did not return within `handler.timeout`. Its own class: TimeoutError belongs to handlers."""

    code = "handler_timeout"
    retriable = True


class ActionTimeout(RecordError):
    """An action did not return within its deadline."""

    code = "action_timeout"
    retriable = True


class LetterError(OutboxdError):
    """A dead letter cannot be written, found or moved."""

    code = "letter_failed"


class SinkUnavailable(LetterError):
    """The sink cannot take letters now; the chain goes on to the next one."""

    code = "sink_unavailable"
    retriable = True


class ChainExhausted(LetterError):
    """No sink of the chain took the letter: the partition waits (invariant 8).

    ``reason`` is `letter_refused` when each sink answered and refused this letter for what it is, else
    `chain_exhausted`. ``stored`` names, by letter id, the sink that did take others of the same call: only the rest
    needs to be written again.
    """

    code = "chain_exhausted"
    retriable = True

    def __init__(
        self,
        message: str,
        *,
        reason: Literal["chain_exhausted", "letter_refused"] = "chain_exhausted",
        stored: Mapping[UUID, str] | None = None,
        suggestion: str | None = None,
    ) -> None:
        super().__init__(message, suggestion=suggestion)
        self.reason: Final = reason
        self.stored: Final[Mapping[UUID, str]] = dict(stored or {})


class LetterUnknown(LetterError):
    """There is no letter with this id in this home."""

    code = "letter_unknown"


class MoveRefused(LetterError):
    """The letter's life cycle has no such move."""

    code = "move_refused"


class PipelineUnknown(OutboxdError):
    """No pipeline of this name is configured."""

    code = "pipeline_unknown"


class PipelineStopped(OutboxdError):
    """A rule or a policy said `stop`: the pipeline fails with this reason and waits for a person."""

    code = "pipeline_stopped"


class DevServerFailed(OutboxdError):
    """A local Kafka or Postgres cannot be brought here, does not start, or does not answer."""

    code = "dev_server_failed"


class StateConflict(OutboxdError):
    """The state is not the expected one, or the table of edges has no such edge."""

    code = "state_conflict"

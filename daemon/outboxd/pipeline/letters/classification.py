"""What becomes of a failed record: the user's rules, what is built in, classifier plugins, then `otherwise`.

Pure but for asking the plugins: a decision has no clock, no await and no memory of earlier failures.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from outboxd.api import Classifier, PluginContext
from outboxd.errors import HandlerTimeout
from outboxd.pipeline.letters.causes import chain_of, class_names, message_of, sqlstates_of
from outboxd.pipeline.letters.settings import ErrorSettings, WhenSettings
from outboxd.pipeline.letters.text import describe
from outboxd.records import Failure, Stage, Verdict
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.letters import ClassifierFailed

__all__ = ["Classification", "Decision", "NamedClassifier", "Rule", "When"]

_UNDECODABLE: Final = "built in: stage decode"
_TIMED_OUT: Final = "built in: handler timeout"
_OTHERWISE: Final = "otherwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A verdict and what decided it: the text that the letter keeps as its ``rule``."""

    verdict: Verdict
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """The condition of a rule: every key that is given must match; of a key's values any.

    ``exceptions`` are names as a traceback prints them (`module.QualName`, builtins bare), ``messages`` regular
    expressions searched in the message, ``sqlstates`` prefixes.
    Each key is looked for by itself in the error and everything behind it (causes, contexts, members of groups): a
    wrapper may carry the class while its cause carries the SQLSTATE.
    """

    exceptions: Sequence[str] = ()
    messages: Sequence[re.Pattern[str]] = ()
    sqlstates: Sequence[str] = ()
    stages: Sequence[Stage] = ()

    def matches(self, failure: Failure) -> bool:
        """True when every key that is given matches; a condition without keys matches everything."""
        errors = chain_of(failure.error)
        return (
            (not self.stages or failure.stage in self.stages)
            and (not self.exceptions or _any_class(errors, self.exceptions))
            and (not self.messages or _any_message(errors, self.messages))
            and (not self.sqlstates or _any_prefix(errors, tuple(self.sqlstates)))
        )

    def __str__(self) -> str:
        patterns = [pattern.pattern for pattern in self.messages]
        keys: Mapping[str, Sequence[object]] = {
            "exception": self.exceptions,
            "message": patterns,
            "sqlstate": self.sqlstates,
            "stage": self.stages,
        }
        return ", ".join(f"{key} {'|'.join(map(str, values))}" for key, values in keys.items() if values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One of the user's rules."""

    when: When
    then: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedClassifier:
    """A classifier plugin under the name that the configuration gives it, with the context it is called with."""

    name: str
    classifier: Classifier
    context: PluginContext


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification:
    """Decides about failures of one pipeline.

    The order: ``rules`` (first match wins), what cannot be decoded is a dead letter, ``classifiers`` (the first answer
    that is not None wins), a handler's deadline is retried, ``otherwise``.
    """

    pipeline: str
    rules: Sequence[Rule] = ()
    otherwise: Verdict = Verdict.RETRY
    classifiers: Sequence[NamedClassifier] = ()
    telemetry: Telemetry | None = field(default=None, repr=False)

    @classmethod
    def from_settings(
        cls,
        settings: ErrorSettings,
        *,
        pipeline: str,
        classifiers: Sequence[NamedClassifier] = (),
        telemetry: Telemetry | None = None,
    ) -> Self:
        """The classification that the YAML's `errors` describes."""
        return cls(
            pipeline=pipeline,
            rules=[Rule(when=_condition(rule.when), then=rule.then) for rule in settings.rules],
            otherwise=settings.otherwise,
            classifiers=classifiers,
            telemetry=telemetry,
        )

    def decide(self, failure: Failure) -> Decision:
        """The verdict on this failure; never raises, whatever the error or a plugin does."""
        for index, rule in enumerate(self.rules):
            if rule.when.matches(failure):
                return Decision(verdict=rule.then, rule=f"rules[{index}]: {rule.when}")
        if failure.stage in {Stage.FETCH, Stage.DECODE}:
            return Decision(verdict=Verdict.DEAD_LETTER, rule=_UNDECODABLE)
        for name, verdict in self._answers(failure):
            if verdict is not None:
                return Decision(verdict=verdict, rule=f"classifier {name}")
        if isinstance(failure.error, HandlerTimeout):
            return Decision(verdict=Verdict.RETRY, rule=_TIMED_OUT)
        return Decision(verdict=self.otherwise, rule=_OTHERWISE)

    def _answers(self, failure: Failure) -> Iterator[tuple[str, Verdict | None]]:
        for named in self.classifiers:
            try:
                verdict = named.classifier.classify(failure, named.context)
                yield named.name, None if verdict is None else Verdict(verdict)
            except Exception as error:  # noqa: BLE001 - a broken plugin has no opinion; it must not decide by raising
                if self.telemetry is not None:
                    self.telemetry.emit(
                        ClassifierFailed(pipeline=self.pipeline, classifier=named.name, error=describe(error))
                    )


def _condition(when: WhenSettings) -> When:
    return When(
        exceptions=when.exception or (),
        messages=[re.compile(pattern) for pattern in when.message or ()],
        sqlstates=when.sqlstate or (),
        stages=when.stage or (),
    )


def _any_class(errors: Sequence[BaseException], wanted: Sequence[str]) -> bool:
    return any(name in wanted for error in errors for name in class_names(type(error)))


def _any_message(errors: Sequence[BaseException], patterns: Sequence[re.Pattern[str]]) -> bool:
    messages = [message_of(error) for error in errors]
    return any(pattern.search(message) for pattern in patterns for message in messages)


def _any_prefix(errors: Sequence[BaseException], prefixes: tuple[str, ...]) -> bool:
    return any(state.startswith(prefixes) for error in errors for state in sqlstates_of(error))

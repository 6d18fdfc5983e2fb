from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxd.errors import HandlerTimeout, Undecodable
from outboxd.pipeline.letters.classification import Classification, NamedClassifier, Rule, When
from outboxd.pipeline.letters.settings import ErrorSettings
from outboxd.records import Failure, Stage, Verdict
from outboxd.telemetry.letters import ClassifierFailed
from tests.unit.letters.doubles import Recorder, a_record

HERE = __name__


class Outer:
    class Nested(LookupError):
        pass


class DriverError(Exception):
    def __init__(self, sqlstate: str) -> None:
        super().__init__(f"failed with {sqlstate}")
        self.sqlstate = sqlstate


class PsycopgError(Exception):
    pgcode = "40001"


class WrappedByOrm(Exception):
    orig = DriverError("57P01")


class Liar(Exception):
    @property
    def sqlstate(self) -> str:
        raise RuntimeError("a property that raises")

    def __str__(self) -> str:
        raise RuntimeError("a __str__ that raises")


class Classifier:
    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked = 0

    def classify(self, failure: Failure, context: object) -> object:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def in_context(error: BaseException, context: BaseException, *, suppressed: bool = False) -> BaseException:
    error.__context__ = context
    error.__suppress_context__ = suppressed
    return error


def failed(error: BaseException, stage: Stage = Stage.HANDLE) -> Failure:
    return Failure(error=error, record=a_record(), stage=stage, attempt=1)


def when(**keys: object) -> When:
    if "messages" in keys:
        keys["messages"] = [re.compile(pattern) for pattern in keys["messages"]]  # type: ignore[attr-defined]
    return When(**keys)  # type: ignore[arg-type]


TABLE: Sequence[tuple[str, When, BaseException, bool]] = [
    ("builtin, bare", when(exceptions=["ValueError"]), ValueError(), True),
    ("a subclass", when(exceptions=["LookupError"]), KeyError(), True),
    ("not a superclass", when(exceptions=["KeyError"]), LookupError(), False),
    ("a nested class by its qualified name", when(exceptions=[f"{HERE}.Outer.Nested"]), Outer.Nested(), True),
    ("not by a bare name that has a module", when(exceptions=["Nested"]), Outer.Nested(), False),
    ("any of the list", when(exceptions=["KeyError", "ValueError"]), ValueError(), True),
    ("a cause", when(exceptions=["KeyError"]), caused(RuntimeError(), KeyError()), True),
    ("a cause of a cause", when(exceptions=["KeyError"]), caused(RuntimeError(), caused(OSError(), KeyError())), True),
    ("a context", when(exceptions=["KeyError"]), in_context(RuntimeError(), KeyError()), True),
    ("no suppressed context", when(exceptions=["KeyError"]), in_context(OSError(), KeyError(), suppressed=True), False),
    ("a member", when(exceptions=["KeyError"]), ExceptionGroup("two", [OSError(), KeyError()]), True),
    ("a member's cause", when(exceptions=["KeyError"]), BaseExceptionGroup("one", [caused(OSError(), KeyError())]), True),
    ("a message", when(messages=["no .* left"]), OSError("there is no space left here"), True),
    ("another message", when(messages=["^space"]), OSError("no space"), False),
    ("a cause's message", when(messages=["bad currency"]), caused(RuntimeError(), ValueError("bad currency")), True),
    ("SQLSTATE by its beginning", when(sqlstates=["40"]), DriverError("40001"), True),
    ("SQLSTATE, not inside", when(sqlstates=["01"]), DriverError("40001"), False),
    ("SQLSTATE of psycopg2", when(sqlstates=["40001"]), PsycopgError(), True),
    ("SQLSTATE behind SQLAlchemy", when(sqlstates=["08", "57P"]), WrappedByOrm(), True),
    ("SQLSTATE of a cause", when(sqlstates=["57P"]), caused(RuntimeError(), DriverError("57P01")), True),
    ("every key", when(exceptions=["OSError"], messages=["left"]), OSError("nothing left"), True),
    ("not one of the keys", when(exceptions=["OSError"], messages=["right"]), OSError("nothing left"), False),
    ("keys at different places", when(exceptions=["RuntimeError"], sqlstates=["08"]),
     caused(RuntimeError(), DriverError("08006")), True),
    ("stage", when(stages=[Stage.HANDLE]), ValueError(), True),
    ("another stage", when(stages=[Stage.DECODE]), ValueError(), False),
    ("an error that lies", when(messages=["x"], sqlstates=["0"]), Liar(), False),
    ("TimeoutError is not our deadline", when(exceptions=["TimeoutError"]),
     caused(HandlerTimeout("30s passed"), TimeoutError()), False),
    ("our deadline has a class", when(exceptions=["outboxd.errors.HandlerTimeout"]), HandlerTimeout("30s"), True),
]  # fmt: skip


@pytest.mark.parametrize(("condition", "error", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_a_condition_matches(condition: When, error: BaseException, expected: bool) -> None:
    assert condition.matches(failed(error)) is expected


def test_a_circle_of_causes_ends() -> None:
    first, second = ValueError(), KeyError()
    first.__cause__, second.__cause__ = second, first
    assert when(exceptions=["KeyError"]).matches(failed(first))
    assert not when(exceptions=["OSError"]).matches(failed(first))


def test_the_first_rule_that_matches_decides_and_is_named() -> None:
    rules = [
        Rule(when=when(exceptions=["KeyError"]), then=Verdict.SKIP),
        Rule(when=when(exceptions=["LookupError"]), then=Verdict.STOP),
        Rule(when=when(exceptions=["Exception"]), then=Verdict.PAUSE),
    ]
    decision = Classification(pipeline="p", rules=rules).decide(failed(IndexError()))
    assert (decision.verdict, decision.rule) == (Verdict.STOP, "rules[1]: exception LookupError")


@given(matching=st.lists(st.booleans(), max_size=8))
def test_rules_are_asked_in_their_order(matching: list[bool]) -> None:
    rules = [
        Rule(when=when(exceptions=["ValueError" if matches else "KeyError"]), then=Verdict.SKIP) for matches in matching
    ]
    decision = Classification(pipeline="p", rules=rules, otherwise=Verdict.STOP).decide(failed(ValueError()))
    if True in matching:
        assert decision.rule.startswith(f"rules[{matching.index(True)}]")
    else:
        assert (decision.verdict, decision.rule) == (Verdict.STOP, "otherwise")


def test_what_cannot_be_decoded_is_a_dead_letter_unless_a_rule_says_else() -> None:
    poison = failed(Undecodable("not JSON"), Stage.DECODE)
    classifier = Classifier(Verdict.PAUSE)
    named = [NamedClassifier(name="c", classifier=classifier, context=None)]  # type: ignore[arg-type]
    decision = Classification(pipeline="p", classifiers=named).decide(poison)
    assert (decision.verdict, decision.rule) == (Verdict.DEAD_LETTER, "built in: stage decode")
    assert classifier.asked == 0
    rule = Rule(when=when(stages=[Stage.DECODE]), then=Verdict.SKIP)
    assert Classification(pipeline="p", rules=[rule]).decide(poison).verdict is Verdict.SKIP


def test_a_handlers_deadline_is_retried_unless_somebody_says_else() -> None:
    late = failed(HandlerTimeout("30s passed"))
    decision = Classification(pipeline="p", otherwise=Verdict.DEAD_LETTER).decide(late)
    assert (decision.verdict, decision.rule) == (Verdict.RETRY, "built in: handler timeout")
    pausing = NamedClassifier(name="c", classifier=Classifier(Verdict.PAUSE), context=None)  # type: ignore[arg-type]
    assert Classification(pipeline="p", classifiers=[pausing]).decide(late).verdict is Verdict.PAUSE


def test_classifiers_are_asked_in_order_until_one_answers() -> None:
    answers = [Classifier(None), Classifier(Verdict.SKIP), Classifier(Verdict.STOP)]
    named = [
        NamedClassifier(name=f"c{number}", classifier=classifier, context=None)  # type: ignore[arg-type]
        for number, classifier in enumerate(answers)
    ]
    decision = Classification(pipeline="p", classifiers=named).decide(failed(ValueError()))
    assert (decision.verdict, decision.rule) == (Verdict.SKIP, "classifier c1")
    assert [classifier.asked for classifier in answers] == [1, 1, 0]


@pytest.mark.parametrize("answer", [RuntimeError("password=hunter2"), "no verdict at all"])
def test_a_classifier_that_raises_or_talks_nonsense_has_no_opinion(answer: object) -> None:
    telemetry = Recorder()
    named = [NamedClassifier(name="bad", classifier=Classifier(answer), context=None)]  # type: ignore[arg-type]
    decision = Classification(pipeline="p", classifiers=named, telemetry=telemetry).decide(failed(ValueError()))
    assert (decision.verdict, decision.rule) == (Verdict.RETRY, "otherwise")
    [event] = telemetry.of(ClassifierFailed)
    assert "hunter2" not in repr(event)


def test_the_yaml_says_the_same() -> None:
    settings = ErrorSettings.model_validate(
        {
            "rules": [
                {"when": {"exception": "KeyError"}, "then": "dead_letter"},
                {"when": {"sqlstate": ["08", "57P"], "stage": "handle"}, "then": "pause"},
                {"when": {"message": "a+b"}, "then": "skip"},
            ],
            "otherwise": "stop",
        }
    )
    classification = Classification.from_settings(settings, pipeline="p")
    decided = [
        classification.decide(failed(error)).verdict
        for error in (KeyError(), DriverError("57P01"), OSError("aab"), OSError())
    ]
    assert decided == [Verdict.DEAD_LETTER, Verdict.PAUSE, Verdict.SKIP, Verdict.STOP]

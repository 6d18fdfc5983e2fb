"""Strict types, places and remedies of single parts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from outboxd.api import parse_duration
from outboxd.pipeline.consumer.settings import ConsumerSettings, ConsumeSettings
from outboxd.pipeline.letters.settings import RetrySettings
from outboxd.pipeline.relay.settings import RelaySettings
from tests.unit.config.conftest import CONNECTIONS, Check, Load

CONSUMER = """
pipelines:
  p:
    consume: {{connection: main, topics: [t]{consume}}}
    handler: {{type: log{handler}}}
    {rest}
"""


def consumer(consume: str = "", handler: str = "", rest: str = "") -> str:
    return CONNECTIONS + CONSUMER.format(consume=consume, handler=handler, rest=rest)


LATER_OF_A_CONSUMER = [
    "consume.order: partition",
    "consume.journal: metadata",
    "consume.undecodable: letter",
    "consume.pattern: a.*",
    "handler.transaction: shop",
    "handler.batch: {}",
    "dead_letters.keep_order: false",
    "dead_letters.parked_max: 1",
    "dead_letters.parked_overflow: wait",
    "dead_letters.flood: {}",
    "dead_letters.retention: {}",
    "dead_letters.replay_to: []",
    "dead_letters.retry_topic: false",
    "dead_letters.edit: false",
]
LATER_OF_A_RELAY = [
    "outbox.columns: {}",
    "outbox.where: a = 1",
    "outbox.mark: {}",
    "outbox.pending: null",
    "outbox.order: none",
    "outbox.listen: false",
    "outbox.retention: 7d",
    "publish.fencing: time",
    "publish.on_poison: skip",
]


@pytest.mark.parametrize("key", LATER_OF_A_CONSUMER)
def test_a_consumers_key_whose_feature_comes_later_is_refused_at_its_place(key: str, problems_of: Check) -> None:
    section, _, written = key.partition(".")
    parts = {"consume": "", "handler": "", "rest": ""}
    if section == "dead_letters":
        parts["rest"] = f"dead_letters: {{{written}}}"
    else:
        parts[section] = f", {written}"
    text = consumer(**parts)
    (problem,) = problems_of(text)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if written in line)
    assert (problem.code, problem.place.line) == ("not_available_yet", line)
    assert problem.place.column == text.splitlines()[line - 1].index(written) + 1
    assert problem.path[2:] == (section, written.partition(":")[0])


@pytest.mark.parametrize("key", LATER_OF_A_RELAY)
def test_a_relays_key_whose_feature_comes_later_is_refused(key: str, problems_of: Check) -> None:
    section, _, written = key.partition(".")
    outbox, publish = (f", {written}" if section == name else "" for name in ("outbox", "publish"))
    text = f"{CONNECTIONS}pipelines:\n  p:\n    outbox: {{connection: shop{outbox}}}\n    publish: {{connection: main{publish}}}\n"
    assert [(problem.code, problem.path[3]) for problem in problems_of(text)] == [
        ("not_available_yet", written.partition(":")[0])
    ]


@pytest.mark.parametrize(
    "text",
    [
        "http: {tokens_file: /x}",
        consumer(rest="errors: {rules: [{when: {http_status: 429}, then: pause}]}"),
        CONNECTIONS
        + "pipelines: {p: {outbox: {connection: shop}, publish: {connection: main}, dead_letters: {chain: []}}}",
    ],
)
def test_other_keys_whose_feature_comes_later_are_refused(text: str, problems_of: Check) -> None:
    assert [problem.code for problem in problems_of(text)] == ["not_available_yet"]


def test_what_is_available_of_such_a_key_is_accepted(load_text: Load) -> None:
    text = f"""daemon: {{reload: 'off'}}{CONNECTIONS}
pipelines:
  r: {{outbox: {{connection: shop, order: key}}, publish: {{connection: main, fencing: epoch, on_poison: block_key}}}}
  c: {{consume: {{connection: main, topics: [t], order: key}}, handler: {{type: log}}}}
"""
    assert list(load_text(text).pipelines) == ["r", "c"]


@pytest.mark.fixes("B056")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        (consumer(", concurrency: true"), "wrong_type"),
        (consumer(", concurrency: '64'"), "wrong_type"),
        (consumer(", concurrency: 1.5"), "wrong_type"),
        (consumer(", concurrency: on"), "wrong_type"),
        (consumer(", group: 007"), None),
        (consumer(", group: 12"), "wrong_type"),
        (consumer(", group: off"), None),
        (consumer(", group: ''"), "out_of_range"),
        (consumer(", max_retires: 1"), "unknown_key"),
        (consumer(", topics: t"), None),
        ("http: {port: true}", "wrong_type"),
        ("telemetry: {metrics: {prometheus: on}}", "wrong_type"),
        ("telemetry: {metrics: {prometheus: 1}}", "wrong_type"),
        (consumer(", commit_every: 5"), "invalid_value"),
        (consumer(", commit_every: 0s"), "invalid_value"),
        (consumer(", max_pending_bytes: 1024"), "invalid_value"),
        (consumer(rest="errors: {rules: [{when: {sqlstate: 40001}, then: pause}]}"), "wrong_type"),
        (consumer(rest="errors: {rules: [{when: {}, then: pause}]}"), "incomplete"),
        (consumer(rest="errors: {rules: [{when: {exception: 'a b'}, then: pause}]}"), "invalid_value"),
        (consumer(rest="errors: {rules: [{when: {exception: 'm.f.<locals>.E'}, then: pause}]}"), None),
        (consumer(rest="errors: {rules: [{when: {message: '('}, then: pause}]}"), "regex_invalid"),
        (consumer(rest="errors: {retry: {initial: 1m}}"), "contradiction"),
        (consumer(rest="errors: {retry: {factor: 0.5}}"), "out_of_range"),
        (consumer(rest="errors: {retry: {factor: 2}}"), None),
        ("http: {host: 0.0.0.0}", "host_not_loopback"),
        ("http: {host: '::1'}", None),
        ("http: {host: localhost}", None),
    ],
)
def test_types_are_strict(text: str, code: str | None, problems_of: Check) -> None:
    if ", topics: t" in text:
        text = text.replace("topics: [t], ", "").replace("topics: t", "topics: [t]")
    assert [problem.code for problem in problems_of(text)] == ([] if code is None else [code])


def test_a_text_from_a_placeholder_gets_the_type_that_is_wanted(load_text: Load) -> None:
    text = consumer(", concurrency: '${env:N}', group: '${env:GROUP}'")
    settings = load_text(text, {"N": "12", "GROUP": "007"}).pipelines["p"]
    assert isinstance(settings, ConsumerSettings)
    assert (settings.consume.concurrency, settings.consume.group) == (12, "007")


def test_a_wrong_number_from_a_placeholder_is_one_problem(problems_of: Check) -> None:
    (problem,) = problems_of(consumer(", concurrency: '${env:N}'"), {"N": "twelve"})
    assert problem.code == "wrong_type"
    assert "twelve" not in str(problem)


@pytest.mark.parametrize(
    ("text", "code", "suggestion"),
    [
        (consumer(", concurency: 5"), "unknown_key", "did you mean 'concurrency'?"),
        (consumer(handler=", levle: info"), "unknown_key", "did you mean 'level'?"),
        (consumer(handler=", level: inof"), "unknown_value", "did you mean 'info'?"),
        (consumer().replace("type: log", "type: lgo"), "plugin_unknown", "did you mean 'log'?"),
        (consumer(", start: earlest"), "unknown_value", "did you mean 'earliest'?"),
        (consumer(", decode: jsn"), "plugin_unknown", "did you mean 'json'?"),
        (consumer(rest="errors: {otherwise: retyr}"), "unknown_value", "did you mean 'retry'?"),
        ("telemetri: {}", "unknown_key", "did you mean 'telemetry'?"),
        (
            consumer(rest="dead_letters: {chain: [{type: spool, directry: x}]}"),
            "unknown_key",
            "did you mean 'directory'?",
        ),
    ],
)
def test_what_is_misspelt_gets_the_closest_name(text: str, code: str, suggestion: str, problems_of: Check) -> None:
    found = [(problem.code, problem.suggestion) for problem in problems_of(text)]
    assert (code, suggestion) in found
    assert [other for other, _ in found if other not in {code, "missing_key"}] == []


def test_a_duration_without_unit_is_refused_with_the_spelling_to_use(problems_of: Check) -> None:
    (problem,) = problems_of(consumer(", commit_every: 5"))
    assert problem.suggestion == 'write "5s" for seconds or "5ms" for milliseconds'


def test_options_of_a_plugin_are_checked_by_its_own_model(problems_of: Check) -> None:
    found = problems_of(consumer(handler=", limit: many, payload: 1"))
    assert [(problem.code, problem.path[-1]) for problem in found] == [
        ("wrong_type", "limit"),
        ("wrong_type", "payload"),
    ]


def test_errors_of_our_own_keys_and_of_the_plugins_come_together(problems_of: Check) -> None:
    found = problems_of(consumer(handler=", limit: many, timeout: 5"))
    assert {(problem.code, problem.path[-1]) for problem in found} == {
        ("wrong_type", "limit"),
        ("invalid_value", "timeout"),
    }


@pytest.mark.parametrize(
    ("pipeline", "code"),
    [
        ("{}", "pipeline_kind"),
        ("{outbox: {}, consume: {}}", "pipeline_kind"),
        ("null", "wrong_type"),
        ("[1]", "wrong_type"),
        ("{outbox: {connection: shop}}", "missing_key"),
    ],
)
def test_a_pipeline_is_a_relay_or_a_consumer(pipeline: str, code: str, problems_of: Check) -> None:
    assert [problem.code for problem in problems_of(f"{CONNECTIONS}pipelines: {{p: {pipeline}}}\n")] == [code]


def test_a_pipelines_name_is_safe_as_group_and_in_urls(problems_of: Check) -> None:
    (problem,) = problems_of(f"{CONNECTIONS}pipelines: {{'a/b': {{outbox: {{connection: shop}}}}}}\n")
    assert problem.code == "wrong_format"


@pytest.mark.parametrize(
    ("connection", "codes"),
    [
        ("{type: postgres}", ["incomplete"]),
        ("{type: postgres, dsn: 'mysql://x'}", ["invalid_value"]),
        ("{type: postgres, dsn: 'postgres://x', host: y}", ["contradiction"]),
        ("{type: postgres, host: h, database: d, user: u, port: 70000}", ["out_of_range"]),
        ("{type: postgres, host: h, database: d, user: u}", []),
        ("{type: kafka}", ["missing_key"]),
        ("{type: kafka, bootstrap_servers: []}", ["out_of_range"]),
        ("{type: kafka, bootstrap_servers: [a]}", ["invalid_value"]),
        ("{type: kafka, bootstrap_servers: 'a:1, b:2'}", []),
        ("{type: kafka, bootstrap_servers: ['[::1]:9092']}", []),
        ("{type: kafka, bootstrap_servers: ['a:1'], security: {protocol: SASL_SSL}}", ["incomplete"]),
        ("{type: kafka, bootstrap_servers: ['a:1'], security: {username: u}}", ["contradiction"]),
        ("{type: kafka, bootstrap_servers: ['a:1'], security: {protocol: SSL, cert_file: x}}", ["incomplete"]),
        ("{dsn: x}", ["missing_key"]),
        ("5", ["wrong_type"]),
    ],
)
def test_a_connection_is_complete_and_without_contradiction(
    connection: str, codes: list[str], problems_of: Check
) -> None:
    assert [problem.code for problem in problems_of(f"connections: {{c: {connection}}}\n")] == codes


def test_defaults_are_those_of_the_reference(load_text: Load) -> None:
    text = consumer() + "  r: {outbox: {connection: shop}, publish: {connection: main}}\n"
    pipelines = load_text(text).pipelines
    reads, relays = pipelines["p"], pipelines["r"]
    assert isinstance(reads, ConsumerSettings)
    assert isinstance(relays, RelaySettings)
    assert (reads.consume.group, reads.consume.start, reads.consume.concurrency) == ("p", "earliest", 64)
    assert reads.consume.max_pending_bytes == 64 * 1024 * 1024
    assert reads.consume.decode.plugin.type == "json"
    assert (reads.errors.retry.attempts, reads.errors.retry.jitter, reads.errors.outage.failures) == (5, "full", 5)
    assert (relays.outbox.table, relays.outbox.done, relays.publish.shards) == ("outboxd.outbox", "delete", 8)
    assert (relays.publish.compression, relays.publish.fencing, relays.publish.topics) == ("zstd", "epoch", None)


def test_a_topic_without_actions_may_be_empty(load_text: Load) -> None:
    text = (
        CONNECTIONS
        + "pipelines: {p: {outbox: {connection: shop}, publish: {connection: main, topics: {a: , b: {}}}}}\n"
    )
    settings = load_text(text).pipelines["p"]
    assert isinstance(settings, RelaySettings)
    assert list(settings.publish.topics or {}) == ["a", "b"]


def test_sinks_without_a_name_get_their_type_numbered_where_it_is_taken(load_text: Load, problems_of: Check) -> None:
    chain = "[{type: spool, directory: a}, {type: spool, directory: b}, {type: kafka, connection: main, name: spool-3}]"
    settings = load_text(consumer(rest=f"dead_letters: {{chain: {chain}}}")).pipelines["p"]
    assert isinstance(settings, ConsumerSettings)
    assert [sink.name for sink in settings.dead_letters.chain] == ["spool", "spool-2", "spool-3"]
    twice = "[{type: spool, directory: a, name: s}, {type: spool, directory: b, name: s}]"
    assert [problem.code for problem in problems_of(consumer(rest=f"dead_letters: {{chain: {twice}}}"))] == [
        "duplicate_name"
    ]


@given(number=st.integers(min_value=1, max_value=10**9), unit=st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_of_the_yaml_is_the_one_of_the_model(number: int, unit: str) -> None:
    if unit == "d" and number > 10**8:
        return
    read = RetrySettings.model_validate({"elapsed": f"{number}{unit}"}).elapsed
    assert read == parse_duration(f"{number}{unit}")


@given(st.text(max_size=20))
def test_no_text_breaks_the_reading_of_durations_and_sizes(text: str) -> None:
    for model, key in ((RetrySettings, "elapsed"), (ConsumeSettings, "max_pending_bytes")):
        try:
            model.model_validate({key: text})
        except ValidationError:
            continue


@pytest.mark.parametrize("text", ["5s\n", "9" * 400 + "d", "99999999999d", "1MiB\n", "\u0665s"])
def test_odd_durations_and_sizes_are_refused_or_read_but_never_break(text: str, problems_of: Check) -> None:
    quoted = json.dumps(text)
    found = problems_of(consumer(f", commit_every: {quoted}, max_pending_bytes: {quoted}"))
    assert {problem.code for problem in found} == {"invalid_value"}

"""Checks across sections, and where dead letters go by default."""

from __future__ import annotations

import pytest

from outboxd.config import ConfigurationInvalid, Problem
from outboxd.pipeline.consumer.settings import ConsumerSettings
from tests.unit.config.conftest import CONNECTIONS, Check, Load
from tests.unit.plugin_doubles import ForgetfulSink, StoringHandler, registry_with

OTHERS = """
  shop2: {type: postgres, dsn: "postgresql://localhost/shop"}
  main2: {type: kafka, bootstrap_servers: ["other:9092", "localhost:9092"]}
  far: {type: kafka, bootstrap_servers: ["far:9092"]}
"""


def codes(problems: list[Problem]) -> list[str]:
    return [problem.code for problem in problems]


def consumer(
    name: str = "p", topics: str = "t", rest: str = "", handler: str = "type: log", connection: str = "main"
) -> str:
    consume = f"{{connection: {connection}, topics: [{topics}]{rest}}}"
    return f"  {name}:\n    consume: {consume}\n    handler: {{{handler}}}\n"


def relay(name: str, table: str, connection: str = "shop") -> str:
    return f"  {name}:\n    outbox: {{connection: {connection}, table: {table}}}\n    publish: {{connection: main}}\n"


def pipelines(*texts: str, connections: str = CONNECTIONS) -> str:
    return f"{connections}pipelines:\n{''.join(texts)}"


@pytest.mark.parametrize(
    ("text", "code", "suggestion"),
    [
        (consumer(connection="mian"), "connection_unknown", "did you mean 'main'?"),
        (consumer(connection="shop"), "connection_type", "use one of: main"),
        (consumer(handler="type: forward, connection: shop, topic: x"), "connection_type", "use one of: main"),
        (relay("r", "a", "main"), "connection_type", "use one of: shop"),
        (relay("r", "a", "shopp"), "connection_unknown", "did you mean 'shop'?"),
    ],
)
def test_a_connection_that_is_named_exists_and_has_the_right_type(
    text: str, code: str, suggestion: str, problems_of: Check
) -> None:
    assert [(problem.code, problem.suggestion) for problem in problems_of(pipelines(text))] == [(code, suggestion)]


def test_the_connection_of_the_state_is_checked_too(problems_of: Check) -> None:
    (problem,) = problems_of(f"daemon: {{state: main}}{CONNECTIONS}")
    assert problem.code == "connection_type"


def test_an_invalid_connection_is_reported_once_and_not_as_unknown(problems_of: Check) -> None:
    text = pipelines(consumer(), connections="\nconnections:\n  main: {type: kafka, bootstrap_servers: [x]}\n")
    assert codes(list(problems_of(text))) == ["invalid_value"]


@pytest.mark.fixes("B013")
def test_two_pipelines_may_not_share_a_group(problems_of: Check) -> None:
    (problem,) = problems_of(pipelines(consumer("p1", "a", ", group: g"), consumer("p2", "b", ", group: g")))
    assert problem.code == "group_shared"
    assert "'p1' and 'p2'" in problem.message
    assert problem.place.line == 10


@pytest.mark.fixes("B013")
def test_a_group_is_also_shared_by_default_and_over_another_connection_to_the_same_brokers(problems_of: Check) -> None:
    assert codes(list(problems_of(pipelines(consumer("p1"), consumer("p2", rest=", group: p1"))))) == ["group_shared"]
    connections = CONNECTIONS + OTHERS.lstrip("\n")
    same, far = (
        pipelines(
            consumer("p1", rest=", group: g"),
            consumer("p2", rest=", group: g", connection=name),
            connections=connections,
        )
        for name in ("main2", "far")
    )
    assert codes(list(problems_of(same))) == ["group_shared"]
    assert codes(list(problems_of(far))) == []


@pytest.mark.fixes("B013")
def test_the_group_is_the_pipelines_name_by_default(load_text: Load) -> None:
    settings = load_text(pipelines(consumer("billing"))).pipelines["billing"]
    assert isinstance(settings, ConsumerSettings)
    assert settings.consume.group == "billing"


@pytest.mark.parametrize(
    ("topics", "topic", "is_loop"),
    [
        ("a", "{topic}.dlq", False),
        ("a, a.dlq", "{topic}.dlq", True),
        ("a, b", "b", True),
        ("a", "dlq.{pipeline}", False),
    ],
)
def test_a_dead_letter_topic_may_not_be_consumed_by_the_same_pipeline(
    topics: str, topic: str, is_loop: bool, problems_of: Check
) -> None:
    chain = f"    dead_letters: {{chain: [{{type: kafka, connection: main, topic: '{topic}'}}]}}\n"
    found = codes(list(problems_of(pipelines(consumer(topics=topics) + chain))))
    assert found == (["pipeline_feeds_itself"] if is_loop else [])


def test_a_handler_may_not_forward_to_what_its_pipeline_consumes(problems_of: Check) -> None:
    text = pipelines(consumer(handler="type: forward, connection: main, topic: '{topic}'"))
    assert codes(list(problems_of(text))) == ["pipeline_feeds_itself"]


@pytest.mark.parametrize(("size", "is_refused"), [(63, True), (64, False)])
def test_a_pool_smaller_than_the_concurrency_that_uses_it_is_refused(
    size: int, is_refused: bool, load_text: Load
) -> None:
    registry = registry_with(handlers={"store": StoringHandler})
    connections = CONNECTIONS.replace("shop: {", f"shop: {{pool_max_size: {size}, ")
    text = pipelines(consumer(handler="type: store, connection: shop"), connections=connections)
    if not is_refused:
        load_text(text, registry=registry)
        return
    with pytest.raises(ConfigurationInvalid) as caught:
        load_text(text, registry=registry)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("pool_too_small", ("connections", "shop", "pool_max_size"))


def test_a_sink_that_is_not_durable_is_refused(load_text: Load) -> None:
    registry = registry_with(sinks={"forgetful": ForgetfulSink})
    for chain in ("[{type: forgetful}]", "[{type: forgetful}, {type: spool, directory: x}]"):
        with pytest.raises(ConfigurationInvalid) as caught:
            load_text(pipelines(consumer() + f"    dead_letters: {{chain: {chain}}}\n"), registry=registry)
        assert codes(list(caught.value.problems)) == ["chain_not_durable"]


def test_letters_go_to_the_postgres_that_the_handler_names(load_text: Load) -> None:
    registry = registry_with(handlers={"store": StoringHandler})
    text = pipelines(
        consumer(handler="type: store, connection: shop2, headers: {x-api: a}"),
        connections=CONNECTIONS + OTHERS.lstrip("\n"),
    )
    settings = load_text(text, registry=registry).pipelines["p"]
    assert isinstance(settings, ConsumerSettings)
    assert settings.dead_letters.chain[0].plugin.options["connection"] == "shop2"
    assert settings.handler.plugin.options["headers"] == {"x-api": "a"}


def test_two_relays_may_not_read_the_same_rows(problems_of: Check) -> None:
    def found(one: str, two: str, connection: str = "shop") -> list[str]:
        connections = CONNECTIONS + OTHERS.lstrip("\n")
        text = pipelines(relay("r1", one), relay("r2", two, connection), connections=connections)
        return codes(list(problems_of(text)))

    assert found("outboxd.outbox", "outboxd.outbox") == ["rows_shared"]
    assert found("app.outbox", "App.Outbox") == ["rows_shared"]
    assert found("app.outbox", "'\"app\".outbox'") == ["rows_shared"]
    assert found("app.outbox", "'app.\"Outbox\"'") == []
    assert found("outbox", "public.outbox") == ["rows_shared"]
    assert found("a", "b") == []
    assert found("a", "a", "shop2") == ["rows_shared"]


def test_an_action_in_the_marks_transaction_stands_last(problems_of: Check) -> None:
    def found(*actions: str) -> list[str]:
        listed = ", ".join(
            {"sql": "{type: sql, statement: select 1}", "python": "{type: python, target: 'm:f'}"}[a] for a in actions
        )
        text = f"{CONNECTIONS}pipelines:\n  r:\n    outbox: {{connection: shop}}\n    publish: {{connection: main, topics: {{t: {{after_publish: [{listed}]}}}}}}\n"
        return codes(list(problems_of(text)))

    assert found("python", "sql", "sql") == []
    assert found("sql", "python") == ["action_order"]


def test_a_total_time_before_the_first_retry_is_refused(problems_of: Check) -> None:
    text = pipelines(consumer() + "    errors: {retry: {elapsed: 100ms}}\n")
    assert codes(list(problems_of(text))) == ["contradiction"]


def chain_of(load_text: Load, text: str) -> list[tuple[str, object]]:
    settings = load_text(text).pipelines["p"]
    assert isinstance(settings, ConsumerSettings)
    return [(sink.plugin.type, sink.plugin.options.get("connection")) for sink in settings.dead_letters.chain]


def test_without_a_chain_letters_go_to_the_only_postgres_and_behind_it_to_a_topic(load_text: Load) -> None:
    assert chain_of(load_text, pipelines(consumer())) == [("postgres", "shop"), ("kafka", "main")]


def test_without_a_known_postgres_letters_go_to_a_topic(load_text: Load) -> None:
    two = CONNECTIONS + OTHERS.lstrip("\n")
    assert chain_of(load_text, pipelines(consumer(), connections=two)) == [("kafka", "main")]
    none = '\nconnections:\n  main: {type: kafka, bootstrap_servers: ["localhost:9092"]}\n'
    assert chain_of(load_text, pipelines(consumer(), connections=none)) == [("kafka", "main")]


def test_the_default_topic_is_left_out_when_the_pipeline_reads_it(load_text: Load, problems_of: Check) -> None:
    assert chain_of(load_text, pipelines(consumer(topics="a, a.dlq"))) == [("postgres", "shop")]
    none = '\nconnections:\n  main: {type: kafka, bootstrap_servers: ["localhost:9092"]}\n'
    found = problems_of(pipelines(consumer(topics="a, a.dlq"), connections=none))
    assert codes(list(found)) == ["chain_empty"]


def test_the_other_keys_of_dead_letters_stay_when_the_chain_is_chosen(load_text: Load) -> None:
    settings = load_text(pipelines(consumer() + "    dead_letters: {exhausted: stop}\n")).pipelines["p"]
    assert isinstance(settings, ConsumerSettings)
    assert settings.dead_letters.exhausted == "stop"
    assert len(settings.dead_letters.chain) == 2


def test_a_mistake_hides_no_wrong_connection_beside_it(problems_of: Check) -> None:
    text = pipelines(
        "  r:\n    outbox: {connection: shp}\n    publish: {connection: shop, topcs: {}}\n",
        "  c:\n    consume: {connection: shop, topics: [t], decod: json}\n    handler: {type: log}\n"
        "    dead_letters: {chain: [{type: nothing, connection: x}, {type: forget, connection: main}]}\n",
    )
    found = {(".".join(map(str, problem.path)), problem.code) for problem in problems_of(text)}
    assert found >= {
        ("pipelines.r.outbox.connection", "connection_unknown"),
        ("pipelines.r.publish.connection", "connection_type"),
        ("pipelines.r.publish.topcs", "unknown_key"),
        ("pipelines.c.consume.connection", "connection_type"),
        ("pipelines.c.consume.decod", "unknown_key"),
    }


@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("postgresql://u:pw-sec@localhost:notaport/shop", "the port a number"),
        ("postgresql://u:pw-sec@localhost/shop?sslmode=bogus", "sslmode is one of"),
        ("postgresql://u:pw#sec@localhost/shop", "%XX"),
        ("postgresql://u:pw@sec@localhost/shop", "%XX"),
        ("postgresql://u:am@p/pw-sec@localhost/shop", "%XX"),
        ("mysql://u:pw-sec@localhost/shop", "starts with postgresql://"),
    ],
)
def test_a_dsn_that_the_driver_could_not_use_is_told_without_being_shown(
    dsn: str, said: str, problems_of: Check
) -> None:
    (problem,) = problems_of(f'connections:\n  shop: {{type: postgres, dsn: "{dsn}"}}\n')
    assert said in problem.message
    assert "sec" not in str(problem)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://localhost/shop",
        "postgres://u:p%40ss%23@[::1]:5432/shop?sslmode=verify-full",
        "postgresql://u@h1:1,h2:2/shop?target_session_attrs=read-write",
        "postgresql:///shop?host=/var/run/postgresql",
    ],
)
def test_a_dsn_that_the_driver_can_use_is_taken(dsn: str, problems_of: Check) -> None:
    assert problems_of(f'connections:\n  shop: {{type: postgres, dsn: "{dsn}"}}\n') == ()

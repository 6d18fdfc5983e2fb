"""No value that came from outside is ever shown: errors, `config show`, representations (invariant 11)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outboxd.config import Configuration, ConfigurationInvalid
from outboxd.registry import Registry
from tests.unit.config.conftest import Check, Load
from tests.unit.plugin_doubles import SecretiveHandler, registry_with

SECRET = "hunter2-s3cr3t"

VALID = """
connections:
  dsn: {type: postgres, dsn: "postgresql://u:${env:SECRET}@h/db"}
  literal: {type: postgres, dsn: "postgresql://u:literal-s3cr3t@h/db"}
  default: {type: postgres, dsn: "${env:NONE:postgresql://u:default-s3cr3t@h/db}"}
  fields: {type: postgres, host: h, database: d, user: u, password: literal-s3cr3t}
  whole: {type: postgres, host: h, database: d, user: u, password: "${env:SECRET}"}
  main:
    type: kafka
    bootstrap_servers: ["localhost:9092"]
    security: {protocol: SASL_SSL, mechanism: PLAIN, username: u, password: "${file:password.txt}"}
pipelines:
  p:
    consume: {connection: main, topics: [t]}
    handler: {type: secretive, url: "${env:SECRET}", api_token: literal-s3cr3t, nested: {password: "x${env:SECRET}"}}
    dead_letters: {chain: [{type: kafka, connection: main}]}
"""


@pytest.fixture
def secretive() -> Registry:
    return registry_with(handlers={"secretive": SecretiveHandler})


@pytest.fixture
def configuration(tmp_path: Path, load_text: Load, secretive: Registry) -> Configuration:
    (tmp_path / "password.txt").write_text(SECRET + "\n")
    return load_text(VALID, {"SECRET": SECRET}, registry=secretive)


def test_the_document_shows_placeholders_and_hides_literal_secrets(configuration: Configuration) -> None:
    document = json.loads(json.dumps(configuration.document))
    connections, handler = document["connections"], document["pipelines"]["p"]["handler"]
    assert connections["dsn"]["dsn"] == "***${env:SECRET}***"
    assert connections["literal"]["dsn"] == "***"
    assert connections["default"]["dsn"] == "${env:NONE:***}"
    assert connections["fields"]["password"] == "***"
    assert connections["whole"]["password"] == "${env:SECRET}"
    assert connections["main"]["security"]["password"] == "${file:password.txt}"
    assert handler == {
        "type": "secretive",
        "url": "${env:SECRET}",
        "api_token": "***",
        "nested": {"password": "***${env:SECRET}"},
    }
    assert "s3cr3t" not in json.dumps(document)


def test_secrets_do_not_show_in_representations(configuration: Configuration) -> None:
    assert "s3cr3t" not in repr(configuration)


def test_the_values_themselves_are_there(configuration: Configuration) -> None:
    connection = configuration.connections["dsn"]
    assert connection.dsn.get_secret_value() == f"postgresql://u:{SECRET}@h/db"  # type: ignore[union-attr]


WRONG = [
    "connections: {c: {type: postgres, dsn: '${env:SECRET}'}}",
    "connections: {c: {type: '${env:SECRET}'}}",
    "connections: {c: {type: kafka, bootstrap_servers: '${env:SECRET}'}}",
    "connections: {c: {type: kafka, bootstrap_servers: ['a:1'], security: {protocol: '${env:SECRET}'}}}",
    "connections: {c: {type: kafka, bootstrap_servers: ['a:1'], security: {username: '${env:SECRET}'}}}",
    "connections: {c: {type: postgres, host: h, database: d, user: u, port: '${env:SECRET}'}}",
    "http: {host: '${env:SECRET}'}",
    "http: {port: '${env:SECRET}'}",
    "daemon: {state: '${env:SECRET}'}",
    "daemon: {name: '${env:SECRET} '}",
    "daemon: {drain_timeout: '${env:SECRET}'}",
    "telemetry: {logs: {level: '${env:SECRET}'}}",
    "telemetry: {traces: {otlp_endpoint: '${env:SECRET}'}}",
    "pipelines: {p: '${env:SECRET}'}",
    "pipelines: {p: {consume: {connection: '${env:SECRET}', topics: ['${env:SECRET}/']}, handler: {type: '${env:SECRET}'}}}",
    "pipelines: {p: {consume: {connection: c, topics: [t], decode: '${env:SECRET}'}, handler: {type: log, level: '${env:SECRET}'}}}",
    "pipelines: {p: {consume: {connection: c, topics: [t]}, handler: {type: python, target: '${env:SECRET}'}}}",
    "pipelines: {p: {consume: {connection: c, topics: [t]}, handler: {type: secretive, url: '${env:SECRET}', checked: '${env:SECRET}'}}}",
    "pipelines: {p: {consume: {connection: c, topics: [t]}, handler: {type: secretive, url: x, nested: {checked: '${env:SECRET}'}}}}",
    "pipelines: {p: {consume: {connection: c, topics: [t]}, handler: {type: log}, errors: {rules: [{when: {message: '(${env:SECRET}'}, then: '${env:SECRET}'}]}}}",
    "pipelines: {p: {outbox: {connection: c, table: '${env:SECRET} x'}, publish: {connection: c, topics: {t: {after_publish: [{type: sql, statement: 'select $${env:SECRET}'}, {type: sql, statement: '${env:SQL}'}]}}}}}",
]


@pytest.mark.parametrize("text", WRONG)
def test_no_problem_shows_a_value_from_outside(text: str, load_text: Load, secretive: Registry) -> None:
    environ = {"SECRET": SECRET, "SQL": "select $s3cr3t_name"}
    with pytest.raises(ConfigurationInvalid) as caught:
        load_text(text, environ, registry=secretive)
    assert caught.value.problems
    for problem in caught.value.problems:
        assert "s3cr3t" not in f"{problem} {problem!r}"
    assert "s3cr3t" not in f"{caught.value} {caught.value!r}"


def test_a_shared_group_from_outside_is_not_shown(load_text: Load, problems_of: Check) -> None:
    text = "connections: {main: {type: kafka, bootstrap_servers: ['a:1']}}\npipelines:\n" + "".join(
        f"  {name}: {{consume: {{connection: main, topics: [t], group: '${{env:SECRET}}'}}, handler: {{type: log}}}}\n"
        for name in ("a", "b")
    )
    (problem,) = problems_of(text, {"SECRET": SECRET})
    assert problem.code == "group_shared"
    assert "s3cr3t" not in str(problem)


def test_the_reason_that_a_plugin_gives_is_shown_for_what_stands_in_the_yaml(
    load_text: Load, secretive: Registry
) -> None:
    text = "pipelines: {p: {consume: {connection: c, topics: [t]}, handler: {type: secretive, url: x, checked: plain}}}"
    with pytest.raises(ConfigurationInvalid) as caught:
        load_text(text, registry=secretive)
    assert "'plain' is not good" in str([str(problem) for problem in caught.value.problems])

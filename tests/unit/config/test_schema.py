"""The JSON Schema says what the loader accepts, plugins' options included."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft202012Validator

from outboxd.config.schema import json_schema
from outboxd.config.yaml import read_yaml
from outboxd.registry import Registry
from tests.unit.config.conftest import Check
from tests.unit.config.test_validation import consumer

RELAY = "pipelines: {p: {outbox: {connection: c%s}, publish: {connection: k%s}}}"


@pytest.fixture(scope="module")
def validator(registry: Registry) -> Draft202012Validator:
    schema = json_schema(registry)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize(
    "text",
    [
        consumer(),
        consumer(", concurrency: '${env:N:64}', decode: raw, commit_every: 1s"),
        consumer(", decode: {type: json}", ", payload: true"),
        consumer(rest="errors: {rules: [{when: {exception: A, sqlstate: ['08']}, then: pause, x-why: a}], x-note: 1}"),
        consumer(
            rest="dead_letters: {chain: [{type: spool, directory: x, max_size: 1GiB, deadline: 2s, drain: false}]}"
        ),
        RELAY % (", done: mark", ", topics: {a: , b: {after_publish: [{type: sql, statement: select 1}]}}"),
        "connections: {c: {type: kafka, bootstrap_servers: 'a:1'}, d: {type: postgres, dsn: '${env:DSN}'}}",
        "x-anything: [1]\nhttp: {port: '${env:PORT}'}",
    ],
)
def test_what_is_right_passes(text: str, validator: Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(read_yaml(text, "f").value)] == []


@pytest.mark.parametrize(
    "text",
    [
        "telemetri: {}",
        consumer(", concurency: 5"),
        consumer(", order: partition"),
        consumer(", journal: metadata"),
        consumer(", commit_every: 5"),
        consumer(handler=", limit: many"),
        consumer().replace("type: log", "type: lgo"),
        consumer(rest="dead_letters: {chain: [{type: spool}]}"),
        RELAY % (", where: a", ""),
        RELAY % ("", ", fencing: time"),
        "http: {port: '8083'}",
        "connections: {c: {type: redis}}",
    ],
)
def test_what_the_loader_refuses_is_underlined(text: str, validator: Draft202012Validator, problems_of: Check) -> None:
    assert list(validator.iter_errors(read_yaml(text, "f").value)) != []
    assert problems_of(text)


def _texts(schema: Any) -> list[str]:
    """Paths of properties without a description."""
    missing = []
    for name, definition in schema["$defs"].items():
        for key, value in definition.get("properties", {}).items():
            if key != "type" and "description" not in value and "$ref" not in value:
                missing.append(f"{name}.{key}")
    return missing


def test_every_key_has_its_reference_text(registry: Registry) -> None:
    assert _texts(json_schema(registry)) == []


def test_defaults_are_written_as_in_the_yaml(registry: Registry) -> None:
    properties = json_schema(registry)["$defs"]["ConsumeSettings"]["properties"]
    assert properties["commit_every"]["default"] == "500ms"
    assert properties["max_pending_bytes"]["default"] == "64MiB"
    assert properties["decode"]["default"] == "json"

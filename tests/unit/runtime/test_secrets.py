"""Which values the redactor is told of."""

from __future__ import annotations

from pathlib import Path

from outboxd.config import load
from outboxd.registry import build_registry
from outboxd.runtime.secrets import secrets_of
from outboxd.telemetry.redaction import Redactor

YAML = """
connections:
  shop: {type: postgres, dsn: "${env:SHOP_DSN}"}
  main:
    type: kafka
    bootstrap_servers: [localhost:9092]
    security: {protocol: SASL_PLAINTEXT, mechanism: PLAIN, username: shop, password: "${env:KAFKA_PASSWORD}"}
pipelines:
  relay: {outbox: {connection: shop}, publish: {connection: main}}
"""


def test_passwords_are_known_however_a_dsn_writes_them(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(YAML)
    dsn = "postgresql://shop:p%40ss%2Fword@db/shop"
    configuration = load(
        [tmp_path], environ={"SHOP_DSN": dsn, "KAFKA_PASSWORD": "kafka-secret"}, registry=build_registry()
    )
    assert secrets_of(configuration) == {dsn, "p%40ss%2Fword", "p@ss/word", "kafka-secret"}


def test_a_credential_inside_an_option_is_not_shown_with_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "all.yaml").write_text(
        YAML.replace(
            "publish: {connection: main}",
            """publish: {connection: main, topics: {t: {after_publish: [
              {type: sql, statement: "select dblink('postgresql://u:stmtsecret@h/d', $key)"}]}}}""",
        )
    )
    configuration = load(
        [tmp_path],
        environ={"SHOP_DSN": "postgresql://shop@db/shop", "KAFKA_PASSWORD": "kafka-secret"},
        registry=build_registry(),
    )
    shown = str(configuration.document)
    assert "stmtsecret" not in shown
    assert "select dblink('postgresql://u:***@h/d', $key)" in shown
    assert "${env:SHOP_DSN}" in shown


def test_a_remedy_that_shows_how_a_dsn_is_written_stays_readable() -> None:
    text = "Write postgresql://user:password@host:port/database; not postgresql://user:hunter22@host/database."
    assert Redactor().text(text) == text.replace("hunter22", "***")

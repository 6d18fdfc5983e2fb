"""Which values the redactor is told of."""

from __future__ import annotations

from pathlib import Path

from outboxd.config import load
from outboxd.registry import build_registry
from outboxd.runtime.secrets import secrets_of

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

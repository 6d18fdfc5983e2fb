"""What the values may say, what is refused and with which words, and that numbers stay what they are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from helm.reference import README, SCHEMA, described, readme, schema
from outboxd.config import load
from outboxd.registry import build_registry
from tests.contract.test_configs import blocks
from tests.helm.render import CHART, RenderFailed, objects, only, pipelines_file, rendered, values_of
from tests.helm.test_manifests import EXAMPLES, FOREIGN, VERSIONS, by_example, given, merged

RENAMED = YAML(typ="safe").load((CHART / "files" / "renamed.yaml").read_text("utf-8"))


def configuration(values: dict[str, Any]) -> Any:
    """The rendered pipelines as the daemon's own reader sees them."""
    return YAML(typ="safe", pure=True).load(pipelines_file(objects(values)))


def test_schema_and_readme_are_up_to_date() -> None:
    assert json.loads(SCHEMA.read_text("utf-8")) == schema(), "run `make docs`"
    assert README.read_text("utf-8") == readme(), "run `make docs`"


def test_every_value_has_a_meaning_and_the_readme_names_it() -> None:
    page = README.read_text("utf-8")
    names = [value.name for value in described() if not value.is_group]
    assert len(names) > 80
    assert [name for name in names if f"| `{name}` |" not in page] == []


@by_example
def test_every_example_is_rendered(example: Path) -> None:
    assert objects(values_of(example.read_text("utf-8")))


@pytest.mark.parametrize(
    ("over", "where"),
    [
        ({"nonsense": 1}, "nonsense"),
        ({"probes": {"liveness": {"peroidSeconds": 3}}}, "peroidSeconds"),
        ({"http": {"management": {"prot": 1}}}, "prot"),
        ({"replicas": "three"}, "/replicas"),
        ({"daemon": {"reload": "sometimes"}}, "/daemon/reload"),
        ({"daemon": {"drain_timeout": 25}}, "/daemon/drain_timeout"),
        ({"spool": {"size": "1G B"}}, "/spool/size"),
        ({"image": {"digest": "sha256:123"}}, "/image/digest"),
        ({"migrations": {"mode": "later"}}, "/migrations/mode"),
        ({"pipelines": {"orders": "no map"}}, "/pipelines/orders"),
        ({"keda": {"triggers": {"age": {"kind": "prometheus"}}}}, "kind"),
        ({"telemetry": {"traces": {"sample_ratio": 2}}}, "/telemetry/traces/sample_ratio"),
    ],
)
def test_what_is_unknown_or_wrong_is_refused_with_its_path(over: dict[str, Any], where: str) -> None:
    with pytest.raises(RenderFailed) as caught:
        rendered(given(**over))
    assert where in str(caught.value)


@pytest.mark.parametrize("old", sorted(RENAMED))
def test_a_value_of_another_name_fails_with_the_new_one(old: str) -> None:
    over: Any = {"x": 1}
    for key in reversed(old.split(".")):
        over = {key: over}
    with pytest.raises(RenderFailed) as caught:
        rendered(given(**over))
    assert f"`{old}` is no value of this chart: use {RENAMED[old]}" in str(caught.value)


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ({"existingConfigMap": "mine"}, "both set"),
        ({"pipelines": {"orders": None, "orders-outbox": None}}, "there is no pipeline"),
        ({"autoscaling": {"enabled": True}, "keda": {"enabled": True, "triggers": {"a": {"type": "cpu"}}}}, "fight"),
        ({"keda": {"enabled": True}}, "keda.triggers"),
        ({"autoscaling": {"enabled": True, "minReplicas": 9}}, "autoscaling.maxReplicas"),
        ({"terminationGracePeriodSeconds": 25}, "daemon.drain_timeout"),
        ({"podDisruptionBudget": {"maxUnavailable": None}}, "neither"),
        ({"podDisruptionBudget": {"minAvailable": 1}}, "both"),
        ({"metrics": {"podMonitor": {"enabled": True}}, "telemetry": {"metrics": {"prometheus": False}}}, "scrape"),
        ({"metrics": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}}, "twice"),
        ({"http": {"port": 8084}}, "http.management.port"),
    ],
)
def test_what_contradicts_itself_fails_with_the_remedy(over: dict[str, Any], words: str) -> None:
    with pytest.raises(RenderFailed) as caught:
        rendered(given(**over))
    assert words in str(caught.value)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(RenderFailed) as caught:
        rendered(given(replicaCount=1, keda={"enabled": True}, terminationGracePeriodSeconds=1))
    assert all(word in str(caught.value) for word in ("replicaCount", "keda.triggers", "terminationGracePeriodSeconds"))


@pytest.mark.fixes("B058")
@pytest.mark.parametrize(
    ("connection", "key"),
    [
        ({"dsn": "postgresql://shop:hunter2@db/shop"}, "connections.shop.dsn"),
        ({"dsn": "postgresql://shop:hunter2@db/shop?sslmode=require"}, "connections.shop.dsn"),
        ({"dsn": None, "host": "db", "user": "shop", "password": "hunter2"}, "connections.shop.password"),
    ],
)
def test_a_password_that_is_written_out_is_refused_and_not_repeated(connection: dict[str, Any], key: str) -> None:
    with pytest.raises(RenderFailed) as caught:
        rendered(given(connections={"shop": connection}))
    assert key in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert rendered(given(connections={"shop": connection}, allowLiteralSecrets=True))


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://shop:${file:/etc/outboxd-secrets/password}@db/shop",
        "postgresql://db/shop",
        "postgresql://shop@db:5432/shop",
        "${env:SHOP_DSN}",
    ],
)
def test_a_secret_by_reference_is_taken(dsn: str) -> None:
    assert configuration(given(connections={"shop": {"dsn": dsn}}))["connections"]["shop"]["dsn"] == dsn


@pytest.mark.fixes("B058")
def test_numbers_and_texts_stay_what_they_are_through_every_overlay() -> None:
    overlay = values_of(
        """
pipelines:
  orders:
    consume: {max_pending: 10000000, group: "0123"}
    x-numbers: [1048576, 604800000, 1000000, 9007199254740991, 0.5, 1e6]
    x-texts: ["no", "on", "1e6", "0x10", "012", "2026-12-01", "~", "null", ""]
    x-lines: "one\\ntwo: {{ not a template }}\\n"
"""
    )
    found = configuration(merged(given(), overlay))["pipelines"]["orders"]
    assert found["consume"] == {
        "connection": "main",
        "topics": ["orders.status_updated"],
        "max_pending": 10000000,
        "max_pending_bytes": "64MiB",
        "group": "0123",
    }
    assert isinstance(found["consume"]["max_pending"], int)
    assert found["x-numbers"] == [1048576, 604800000, 1000000, 9007199254740991, 0.5, 1000000]
    assert found["x-texts"] == ["no", "on", "1e6", "0x10", "012", "2026-12-01", "~", "null", ""]
    assert found["x-lines"] == "one\ntwo: {{ not a template }}\n"
    numbers = objects(
        given(http={"port": 60001, "management": {"port": 60002}}, migrations={"activeDeadlineSeconds": 10000000})
    )
    assert "e+0" not in json.dumps(numbers)


def test_a_later_file_changes_one_key_and_removes_a_pipeline() -> None:
    found = configuration(given(pipelines={"orders-outbox": None, "orders": {"consume": {"concurrency": 3}}}))
    assert set(found["pipelines"]) == {"orders"}
    assert found["pipelines"]["orders"]["consume"]["concurrency"] == 3
    assert found["pipelines"]["orders"]["handler"] == {"type": "log"}


@pytest.mark.parametrize("text", [pytest.param(text, id=where) for where, kind, text in blocks() if kind == "values"])
def test_every_block_of_values_in_the_documentation_is_rendered(text: str) -> None:
    found = objects(merged(given(), values_of(text)))
    assert found
    for each in found:
        if each["apiVersion"] not in FOREIGN:
            kubernetes_validate.validate(each, VERSIONS[-1], strict=True)


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if "existing" not in path.name], ids=lambda path: path.stem
)
def test_the_rendered_pipelines_pass_outboxds_own_check(example: Path, tmp_path: Path) -> None:
    """With the environment that the pod has, and files for what is mounted."""
    values = values_of(example.read_text("utf-8"))
    found = objects(values)
    text = pipelines_file(found)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for key in ("dsn", "password"):
        (secrets / key).write_text("postgresql://localhost/shop")
    (tmp_path / "ca.crt").write_text("a certificate")
    path = tmp_path / "pipelines.yaml"
    path.write_text(
        text.replace("/etc/outboxd-secrets", str(secrets)).replace("/etc/kafka-ca/ca.crt", str(tmp_path / "ca.crt"))
    )
    (container,) = only(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    environ = {each["name"]: each.get("value", "shop-outboxd-0") for each in container["env"]}
    for name in ("SHOP_DSN", "SHOP_ORDERS_DSN", "SHOP_ESTABLISHMENT_DSN"):
        environ[name] = f"postgresql://localhost/{name.lower()}"
    configuration = load([path], environ=environ, registry=build_registry())
    assert configuration.daemon.instance_id == "shop-outboxd-0"
    assert configuration.http.management is not None
    assert configuration.http.management.port == values.get("http", {}).get("management", {}).get("port", 8084)
    assert configuration.daemon.reload == ("off" if "plugins" in example.name else "watch")
    assert configuration.telemetry.logs.format == "json"

"""What the chart renders: valid for Kubernetes, safe by default, safe to upgrade."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest

from tests.helm.render import (
    CHART,
    NAMESPACE,
    RELEASE,
    Object,
    is_hook,
    notes,
    objects,
    only,
    pipelines_file,
    values_of,
)

EXAMPLES = sorted((CHART / "ci").glob("*-values.yaml"))
VERSIONS = ("1.30", "1.32", "1.34", "1.37")
FOREIGN = {"monitoring.coreos.com/v1", "keda.sh/v1alpha1"}
"""Kinds of the Prometheus operator and of KEDA: Kubernetes has no schema for them."""
BASE = values_of((CHART / "ci" / "two-pipelines-values.yaml").read_text("utf-8"))

by_example = pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem.removesuffix("-values") for path in EXAMPLES])


def merged(values: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges values files."""
    result = copy.deepcopy(dict(values))
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(result.get(key), dict):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


def given(**over: Any) -> dict[str, Any]:
    """The two pipelines of the README with other values over them."""
    return merged(BASE, over)


@cache
def of(path: Path, revision: int = 1) -> Sequence[Object]:
    return objects(values_of(path.read_text("utf-8")), revision=revision)


def pods(found: Sequence[Object]) -> Iterator[tuple[str, Any]]:
    """The pod templates of workloads by name."""
    for each in found:
        if each["kind"] in {"StatefulSet", "Job"}:
            yield f"{each['kind']} {each['metadata']['name']}", each["spec"]["template"]


def containers(pod: Any) -> list[Any]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def daemon(found: Sequence[Object]) -> Any:
    """The container that runs the daemon."""
    (container,) = only(found, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    return container


# -- valid


@by_example
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_takes_every_object(example: Path, version: str) -> None:
    for each in of(example):
        if each["apiVersion"] not in FOREIGN:
            kubernetes_validate.validate(each, version, strict=True)


@by_example
def test_every_object_has_the_labels_and_a_name_of_its_own(example: Path) -> None:
    found = [each for each in of(example) if each["metadata"]["name"] != f"{RELEASE}-extra"]
    names = [(each["kind"], each["metadata"]["name"]) for each in found]
    assert len(names) == len(set(names))
    for each in found:
        labels = each["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["helm.sh/chart"].startswith("outboxd-")


@by_example
def test_selectors_find_the_daemons_pods_and_no_others(example: Path) -> None:
    found = of(example)
    labels = only(found, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    selectors = [
        only(found, "StatefulSet")["spec"]["selector"]["matchLabels"],
        only(found, "Service")["spec"]["selector"],
        *(each["spec"]["selector"]["matchLabels"] for each in found if each["kind"] == "PodDisruptionBudget"),
        *(each["spec"]["podSelector"]["matchLabels"] for each in found if each["kind"] == "NetworkPolicy"),
        *(
            constraint["labelSelector"]["matchLabels"]
            for constraint in only(found, "StatefulSet")["spec"]["template"]["spec"].get(
                "topologySpreadConstraints", ()
            )
        ),
    ]
    jobs = [pod["metadata"]["labels"] for name, pod in pods(found) if name.startswith("Job")]
    for selector in selectors:
        assert selector.items() <= labels.items()
        assert not any(selector.items() <= other.items() for other in jobs), "a Job's pod is no daemon"
    for each in found:
        if each["kind"] in {"ServiceMonitor", "PodMonitor"}:
            of_what = only(found, "Service")["metadata"]["labels"] if each["kind"] == "ServiceMonitor" else labels
            assert each["spec"]["selector"]["matchLabels"].items() <= of_what.items()


def test_helm_itself_has_nothing_to_say() -> None:
    for example in EXAMPLES:
        found = helm_python.lint(CHART, values_of(example.read_text("utf-8")), strict=True, namespace=NAMESPACE)
        assert [each for each in found["messages"] if "icon is recommended" not in str(each)] == [], example.name


# -- safe


@by_example
def test_every_pod_keeps_to_the_restricted_standard(example: Path) -> None:
    for name, pod in pods(of(example)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert all(set(volume) <= {"name", "configMap", "secret", "emptyDir"} for volume in spec["volumes"])
        for container in containers(pod):
            if container["name"] == "wait":
                continue  # the user's own
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert "limits" in container["resources"]


def test_by_default_it_runs_as_nobody_in_particular() -> None:
    for name, pod in pods(objects(BASE)):
        assert (pod["spec"]["securityContext"]["runAsUser"], pod["spec"]["securityContext"]["runAsGroup"]) == (
            65532,
            0,
        ), name


@pytest.mark.fixes("B058")
@by_example
def test_no_secret_is_made_and_none_is_written_out(example: Path) -> None:
    assert not any(each["kind"] == "Secret" for each in of(example))


def test_what_must_be_written_to_is_a_volume() -> None:
    container = daemon(objects(BASE))
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
    assert mounts == {"/etc/outboxd": True, "/etc/outboxd-secrets": True, "/tmp": False, "/var/lib/outboxd": False}


def test_nothing_gets_in_but_a_scrape() -> None:
    policy = only(objects(BASE), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"ports": [{"port": "management", "protocol": "TCP"}]}]
    (rule,) = only(of(CHART / "ci" / "scaled-by-hpa-values.yaml"), "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


# -- its life


@pytest.mark.fixes("B059")
def test_probes_ask_the_management_port_and_liveness_asks_nothing_of_a_broker() -> None:
    container = daemon(objects(BASE))
    paths = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert paths == {
        "startup": {"path": "/healthz/live", "port": "management"},
        "readiness": {"path": "/healthz/ready", "port": "management"},
        "liveness": {"path": "/healthz/live", "port": "management"},
    }
    assert [port["name"] for port in container["ports"]] == ["management"]
    # A daemon that is slow is not killed for it, and one that starts has minutes.
    liveness, startup = container["livenessProbe"], container["startupProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 180


@pytest.mark.fixes("B059")
@pytest.mark.parametrize(("drain", "grace"), [("25s", 55), ("1.5m", 120), ("900ms", 31), ("1h", 3630)])
def test_the_grace_period_is_longer_than_the_drain(drain: str, grace: int) -> None:
    found = objects(given(daemon={"drain_timeout": drain}))
    assert only(found, "StatefulSet")["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == grace


@pytest.mark.fixes("B059")
def test_the_daemon_gets_its_signals_itself() -> None:
    container = daemon(objects(BASE))
    assert "command" not in container, "the image's entry point runs"
    assert container["args"] == ["run", "-c", "/etc/outboxd"]
    assert "lifecycle" not in container


def test_a_replica_is_called_like_its_pod() -> None:
    (name,) = [each for each in daemon(objects(BASE))["env"] if each["name"] == "OUTBOXD_DAEMON__INSTANCE_ID"]
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert only(objects(BASE), "StatefulSet")["spec"]["podManagementPolicy"] == "Parallel"


def test_a_wrong_configuration_stops_the_rollout() -> None:
    checks = [
        each
        for each in only(objects(BASE), "StatefulSet")["spec"]["template"]["spec"]["initContainers"]
        if each["name"] == "check"
    ]
    (check,) = checks
    assert check["args"] == ["check", "-c", "/etc/outboxd"]
    assert check["env"] == daemon(objects(BASE))["env"]
    assert {mount["name"] for mount in check["volumeMounts"]} == {"configuration", "secrets", "tmp"}


@pytest.mark.parametrize(("mode", "hooks", "jobs", "init"), [("hook", 2, 0, 0), ("job", 0, 1, 0), ("init", 0, 0, 1), ("off", 0, 0, 0), (False, 0, 0, 0)])  # fmt: skip
def test_migrations_run_where_they_are_wanted(mode: object, hooks: int, jobs: int, init: int) -> None:
    found = objects(given(migrations={"mode": mode}))
    assert sum(map(is_hook, found)) == hooks
    assert sum(each["kind"] == "Job" and not is_hook(each) for each in found) == jobs
    first = only(found, "StatefulSet")["spec"]["template"]["spec"]["initContainers"]
    assert sum(each["args"][0] == "migrate" for each in first) == init
    weights = [int(each["metadata"]["annotations"]["helm.sh/hook-weight"]) for each in found if is_hook(each)]
    assert weights == sorted(weights), "the Job finds its files"


# -- upgrades


@pytest.mark.fixes("B058")
def test_a_changed_pipeline_rolls_the_pods_only_when_nobody_watches() -> None:
    def template(reload: str, topic: str) -> Any:
        pipelines = {"orders": {"consume": {"topics": [topic]}}}
        found = objects(given(daemon={"reload": reload}, pipelines=pipelines))
        assert f"- {topic}\n" in pipelines_file(found)
        return only(found, "StatefulSet")["spec"]["template"]

    assert template("watch", "a") == template("watch", "b")
    assert "checksum/configuration" not in template("watch", "a")["metadata"].get("annotations", {})
    assert template("off", "a") != template("off", "b")
    assert template("off", "a") == template("off", "a")


def test_a_changed_setting_of_the_process_rolls_the_pods() -> None:
    def template(level: str) -> Any:
        return only(objects(given(telemetry={"logs": {"level": level}})), "StatefulSet")["spec"]["template"]

    assert template("info") != template("debug")


@by_example
def test_an_upgrade_changes_nothing_that_cannot_be_changed(example: Path) -> None:
    values = values_of(example.read_text("utf-8"))
    over = {
        "daemon": {"drain_timeout": "7s"},
        "podLabels": {"new": "label"},
        "commonLabels": {"new": "label"},
        "resources": {"limits": {"memory": "2Gi"}},
        "image": {"tag": "9.9.9"},
    }
    before, after = of(example), objects(merged(values, over), revision=2)
    assert _fixed(only(before, "StatefulSet")) == _fixed(only(after, "StatefulSet"))
    assert only(before, "Service")["spec"]["clusterIP"] == only(after, "Service")["spec"]["clusterIP"]
    jobs = [[each["metadata"]["name"] for each in found if each["kind"] == "Job" and not is_hook(each)] for found in (before, after)]  # fmt: skip
    assert not set(jobs[0]) & set(jobs[1]), "a Job that is there cannot be changed"


def test_what_cannot_be_changed_is_what_the_first_release_had() -> None:
    """Somebody runs these: another value here is an upgrade that fails."""
    fixed = _fixed(only(of(CHART / "ci" / "shop-values.yaml"), "StatefulSet"))
    selector = {
        "app.kubernetes.io/component": "daemon",
        "app.kubernetes.io/instance": "shop",
        "app.kubernetes.io/name": "outboxd",
    }
    assert fixed == {
        "name": "shop-outboxd",
        "serviceName": "shop-outboxd",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector},
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "spool", "labels": selector},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    }


def _fixed(stateful_set: Any) -> dict[str, Any]:
    spec = stateful_set["spec"]
    kept = ("serviceName", "podManagementPolicy", "selector", "volumeClaimTemplates")
    return {"name": stateful_set["metadata"]["name"], **{key: spec[key] for key in kept if key in spec}}


# -- more of it


def test_nobody_but_the_scaler_says_how_many() -> None:
    assert only(objects(BASE), "StatefulSet")["spec"]["replicas"] == 1
    for name, kind in (("scaled-by-hpa", "HorizontalPodAutoscaler"), ("scaled-by-keda", "ScaledObject")):
        found = of(CHART / "ci" / f"{name}-values.yaml")
        assert "replicas" not in only(found, "StatefulSet")["spec"]
        target = only(found, kind)["spec"]["scaleTargetRef"]
        assert target == {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "shop-outboxd"}


def test_what_scales_and_what_alerts_looks_at_metrics_that_exist() -> None:
    known = "\n".join(path.read_text("utf-8") for path in (CHART.parents[1] / "daemon/outboxd/telemetry").glob("*.py"))
    (trigger,) = [
        each
        for each in only(of(CHART / "ci" / "scaled-by-keda-values.yaml"), "ScaledObject")["spec"]["triggers"]
        if each["type"] == "prometheus"
    ]
    assert '"outboxd_relay_oldest_pending_seconds"' in known
    assert "outboxd_relay_oldest_pending_seconds" in trigger["metadata"]["query"]


def test_plugins_are_installed_by_hash_before_anything_else_and_another_set_rolls_the_pods() -> None:
    found = of(CHART / "ci" / "plugins-values.yaml")
    for name, pod in pods(found):
        first = pod["spec"]["initContainers"][0]
        assert first["name"] == "plugins", name
        assert "--require-hashes" in first["args"]
        environment = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        assert environment["PYTHONPATH"] == "/opt/outboxd-plugins"
    values = values_of((CHART / "ci" / "plugins-values.yaml").read_text("utf-8"))
    other = objects(merged(values, {"plugins": {"requirements": "outboxd-shop==0.2.0 --hash=sha256:" + "1" * 64}}))
    assert only(found, "StatefulSet")["spec"]["template"] != only(other, "StatefulSet")["spec"]["template"]
    requirements = [each["data"] for each in found if "requirements.txt" in each.get("data", {})]
    assert requirements[0]["requirements.txt"].startswith("outboxd-shop==0.1.0 \\\n")


@pytest.mark.parametrize(
    ("over", "warning"),
    [
        ({"allowLiteralSecrets": True}, "allowLiteralSecrets"),
        ({"networkPolicy": {"enabled": False}}, "networkPolicy.enabled"),
        ({"securityContext": {"readOnlyRootFilesystem": False}}, "readOnlyRootFilesystem"),
        ({"securityContext": {"allowPrivilegeEscalation": True}}, "allowPrivilegeEscalation"),
        ({"securityContext": {"capabilities": None}}, "capabilities"),
        ({"podSecurityContext": {"runAsNonRoot": False}}, "runAsNonRoot"),
        ({"podSecurityContext": {"seccompProfile": None}}, "seccompProfile"),
        ({"serviceAccount": {"automountToken": True}}, "automountToken"),
        ({"image": {"tag": "latest"}}, "image.tag"),
        ({"check": False}, "check is false"),
        ({"daemon": {"state": None}}, "daemon.state"),
        ({"spool": {"enabled": True, "retention": {"whenScaled": "Delete"}}}, "whenScaled"),
        ({"pipelines": {"orders": {"dead_letters": {"chain": [{"type": "spool", "directory": "/tmp/x"}]}}}}, "spool"),
    ],
)
def test_the_notes_warn_of_each_insecure_value(over: dict[str, Any], warning: str) -> None:
    quiet = notes(given(daemon={"state": "shop"}))
    assert "WARNING" not in quiet
    assert f"kubectl --namespace {NAMESPACE} exec shop-outboxd-0 --container outboxd -- outboxd status" in quiet
    said = notes(merged(given(daemon={"state": "shop"}), over))
    (line,) = [line for line in said.splitlines() if line.startswith("WARNING")]
    assert warning in line

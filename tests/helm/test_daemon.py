"""What the chart renders really starts: its files as kubelet mounts them, its variables, its arguments, its probes."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from tests.acceptance.harness import OUTBOXD, Daemon, until
from tests.acceptance.shop_story import Shop, open_shop, tell_the_story
from tests.conftest import StackFactory
from tests.helm.render import CHART, objects, only, pipelines_file, values_of
from tests.helm.test_manifests import merged
from tests.mounted_folder import MountedFolder

POD = "shop-outboxd-0"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Pod(Daemon):
    """The pod of the rendered StatefulSet, as far as one machine can be one."""

    def __init__(self, folder: Path, values: Mapping[str, Any], secret: Mapping[str, str]) -> None:
        super().__init__(folder, "")
        self.values = merged(values, {"http": {"port": _free_port(), "management": {"port": _free_port()}}})
        self._secret = secret
        self._mount = MountedFolder(folder / "etc-outboxd")
        self.config = self._mount.folder
        self.apply()

    def apply(self, over: Mapping[str, Any] | None = None) -> None:
        """Install or upgrade: the ConfigMap's files are swapped, the pod's template is what it is."""
        self.values = merged(self.values, over or {})
        found = objects(self.values)
        self.template = only(found, "StatefulSet")["spec"]["template"]["spec"]
        self.jobs = [each for each in found if each["kind"] == "Job"]
        self._mount.put(pipelines=pipelines_file(found))
        self.url = f"http://127.0.0.1:{self.values['http']['port']}"
        self.environment = self._environment(self.container)

    @property
    def container(self) -> Any:
        """The one that runs the daemon."""
        (container,) = self.template["containers"]
        return container

    def _environment(self, container: Any) -> dict[str, str]:
        image = {"PATH": os.environ["PATH"], "OUTBOXD_STATE_DIR": str(self.folder / "state")}
        given = {each["name"]: each.get("value", POD) for each in container["env"]}
        assert container["envFrom"] == [{"secretRef": {"name": "shop"}}]
        return {**image, **given, **self._secret}

    def _arguments(self, container: Any) -> list[str]:
        return [str(self.config) if word == "/etc/outboxd" else word for word in container["args"]]

    def run_to_its_end(self, container: Any) -> None:
        """An init container or a Job's."""
        finished = subprocess.run(
            [OUTBOXD, *self._arguments(container)],
            env=self._environment(container),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr

    def migrate(self) -> None:
        """What comes before the daemon: the hook, then the init containers."""
        (job,) = self.jobs
        (container,) = job["spec"]["template"]["spec"]["containers"]
        self.run_to_its_end(container)
        for each in self.template["initContainers"]:
            self.run_to_its_end(each)

    def start(self) -> None:
        """The daemon's container."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [OUTBOXD, *self._arguments(self.container)], stdout=log, stderr=log, env=self.environment
            )

    async def probe(self, name: str) -> int:
        """What kubelet gets to hear."""
        probe = self.container[f"{name}Probe"]["httpGet"]
        (port,) = [each["containerPort"] for each in self.container["ports"] if each["name"] == probe["port"]]
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{port}{probe['path']}", headers={"host": "10.0.0.7"})
        return answer.status_code


async def _lives(shop: Shop) -> None:
    pod = shop.daemon
    assert isinstance(pod, Pod)
    assert [await pod.probe(name) for name in ("startup", "readiness", "liveness")] == [200, 200, 200]
    (port,) = [each["containerPort"] for each in pod.container["ports"]]
    async with httpx.AsyncClient(headers={"host": "shop-outboxd-0.shop-outboxd.orders.svc"}) as client:
        page = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
        assert (await client.get(f"http://127.0.0.1:{port}/v1/letters")).status_code == 404
    assert 'pipeline="orders-outbox"' in page

    # `helm upgrade` with another value of one pipeline: it restarts by itself, the others and the pod stay.
    template = pod.template
    pod.apply({"pipelines": {"orders": {"consume": {"concurrency": 3}}}})
    assert pod.template == template

    async def is_restarted() -> bool:
        status = await pod.status("orders")
        return (status["state"], status["restarts"]) == ("RUNNING", 1)

    await until(is_restarted, what="the changed pipeline restarts")
    others = {each["name"]: each["restarts"] for each in await pod.statuses() if each["name"] != "orders"}
    assert set(others.values()) == {0}


async def test_the_shop_lives_in_what_the_chart_renders(
    stack_factory: StackFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = values_of((CHART / "ci" / "shop-values.yaml").read_text("utf-8"))

    def make_daemon(_configuration: str, environment: Mapping[str, str]) -> Daemon:
        return Pod(tmp_path / "pod", values, environment)

    stack = await stack_factory()
    async with open_shop(stack, monkeypatch, make_daemon, spool=tmp_path / "spool") as shop:
        await _lives(shop)
        await tell_the_story(shop)
        lines = shop.daemon.log().splitlines()
        assert all(line.startswith("{") for line in lines), "logs are JSON"
        assert not any(dsn in shop.daemon.log() for dsn in (os.environ["SHOP_ORDERS_DSN"],))


async def test_the_two_pipelines_of_the_readme_run(
    kafka_bootstrap: str, postgres_dsn: str, topic_factory: Any, tmp_path: Path
) -> None:
    """The values file is taken out of the README, and only what belongs to this machine is put in its place."""
    readme = (CHART / "README.md").read_text("utf-8")
    block = readme.split("2. `values.yaml`:")[1].split("```yaml\n")[1].split("   ```")[0]
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "dsn").write_text(postgres_dsn)
    topic = await topic_factory()
    text = (
        block.replace("/etc/outboxd-secrets", str(secrets))
        .replace("kafka.kafka.svc:9092", kafka_bootstrap)
        .replace("orders.status_updated", topic)
        .replace('type: python, target: "shop.orders:apply_status"', "type: log")
    )
    values = merged(YAML(typ="safe", pure=True).load(text), {"extraEnvFrom": [{"secretRef": {"name": "shop"}}]})
    pod = Pod(tmp_path / "pod", values, {})
    try:
        pod.migrate()
        await pod.started()
        assert set(await pod.states()) == {"orders-outbox", "orders"}
        assert await pod.probe("readiness") == 200
        assert await pod.terminate() == 0
    finally:
        pod.kill()

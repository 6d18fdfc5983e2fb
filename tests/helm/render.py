"""Renders the chart: by a `helm` on the PATH, else by Helm's own library in a wheel. Gives objects, not text."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import helm_python
from ruamel.yaml import YAML

from tests.acceptance.harness import ROOT

CHART: Final = ROOT / "helm" / "outboxd"
RELEASE: Final = "shop"
NAMESPACE: Final = "orders"

Object = Mapping[str, Any]


class RenderFailed(Exception):
    """Helm refused the values, or a template did."""


@cache
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def values_of(text: str) -> dict[str, Any]:
    """A values file as Helm reads it."""
    return helm_python.values_from_yaml(text)


def rendered(values: Mapping[str, Any], *, revision: int = 1) -> Mapping[str, str]:
    """Every template's text by its name. Raises RenderFailed."""
    if shutil.which("helm") is not None:
        return _by_command(values, revision)
    try:
        return _chart().render(
            dict(values),
            name=RELEASE,
            namespace=NAMESPACE,
            revision=revision,
            is_install=revision == 1,
            is_upgrade=revision > 1,
        )
    except helm_python.HelmError as error:
        raise RenderFailed(str(error)) from error


def objects(values: Mapping[str, Any], *, revision: int = 1) -> Sequence[Object]:
    """Every object that would be applied. Raises RenderFailed."""
    return [
        each
        for name, text in sorted(rendered(values, revision=revision).items())
        if not name.endswith("NOTES.txt")
        for each in _documents(text)
        if each is not None
    ]


def notes(values: Mapping[str, Any]) -> str:
    """What Helm prints after an installation; only the library gives it without a cluster."""
    return _chart().render(dict(values), name=RELEASE, namespace=NAMESPACE)["outboxd/templates/NOTES.txt"]


def only(found: Sequence[Object], kind: str) -> Any:
    """The one object of this kind, in what comes with the release itself."""
    (one,) = [each for each in found if each["kind"] == kind and not is_hook(each)]
    return one


def pipelines_file(found: Sequence[Object]) -> str:
    """What the daemon reads."""
    (one,) = [each for each in found if "pipelines.yaml" in each.get("data", {}) and not is_hook(each)]
    return str(one["data"]["pipelines.yaml"])


def is_hook(each: Object) -> bool:
    """Whether the object belongs to a hook."""
    return "helm.sh/hook" in (each["metadata"].get("annotations") or {})


def _documents(text: str) -> Iterator[Any]:
    reader = YAML(typ="safe", pure=True)
    reader.version = (1, 1)  # as Kubernetes reads it
    return iter(reader.load_all(text))


def _by_command(values: Mapping[str, Any], revision: int) -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.yaml"
        path.write_text(json.dumps(dict(values)), "utf-8")
        upgrade = [] if revision == 1 else ["--is-upgrade"]
        finished = subprocess.run(
            ["helm", "template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", path, *upgrade],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    if finished.returncode != 0:
        raise RenderFailed(finished.stderr)
    return {"all": finished.stdout}

"""The image: its Dockerfile is carried out in a plain folder, and what comes of it runs the shop."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.acceptance.harness import ROOT, Daemon
from tests.acceptance.shop_story import open_shop, tell_the_story
from tests.conftest import StackFactory
from tests.image.dockerfile import Build, Image, instructions
from tests.image.sandbox import ImageDaemon, has_bubblewrap, sandboxed

DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")


@pytest.fixture(scope="session")
def shop_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plugin package of somebody's own."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", folder, ROOT / "examples" / "shop"], check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory, shop_wheel: Path) -> Iterator[Image]:
    """The whole Dockerfile, with the shop as `PLUGINS`."""
    root = tmp_path_factory.mktemp("image")
    yield Build(ROOT, root, {"PLUGINS": str(shop_wheel), "VERSION": "9.9"}).run(DOCKERFILE)
    shutil.rmtree(root, ignore_errors=True)


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    finished = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_what_builds_the_wheel_is_locked_too() -> None:
    backend = re.search(r'^requires = \["(.*)"\]$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert backend is not None
    assert backend[1] in (ROOT / "requirements" / "build.in").read_text("utf-8").splitlines()


@pytest.mark.fixes("B059")
def test_it_runs_as_nobody_in_particular_and_takes_signals_itself(image: Image) -> None:
    assert sum(instruction.name == "FROM" for instruction in instructions(DOCKERFILE)) == 2
    assert image.settings["USER"] == "65532:0"
    assert image.settings["STOPSIGNAL"] == "SIGTERM"
    # The exec form: no shell stands between the signal and the daemon.
    (program,) = image.exec_form("ENTRYPOINT")
    first_line = Path(program).read_text("utf-8").splitlines()[0]
    assert re.fullmatch(r"#!/\S+/python\S*", first_line), first_line
    assert image.exec_form("CMD") == ["run", "-c", str(image.root / "etc" / "outboxd")]
    assert image.labels["org.opencontainers.image.version"] == "9.9"


def test_nothing_of_the_build_is_left_in_it(image: Image) -> None:
    python = image.here("/opt/outboxd/bin/python")
    listed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, check=True, timeout=60)
    installed = {_normalised(re.split(r"[=@ ]", line)[0]) for line in listed.stdout.splitlines()}
    locked = re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / "runtime.txt").read_text("utf-8"), re.MULTILINE)
    assert installed <= {"outboxd", "outboxd-shop", *map(_normalised, locked)}
    origin = subprocess.run(
        [python, "-c", "import outboxd; print(outboxd.__file__)"], capture_output=True, text=True, check=True, cwd="/"
    )
    assert Path(origin.stdout.strip()).is_relative_to(image.here("/opt/outboxd/lib"))


def test_a_plugin_cannot_change_what_is_locked(image: Image) -> None:
    python = image.here("/opt/outboxd/bin/python")
    constraints = image.here("/opt/outboxd/constraints.txt")
    finished = subprocess.run(
        [python, "-m", "pip", "install", "--dry-run", "--constraint", constraints, "aiokafka<0.14"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode != 0
    assert "conflicting dependencies" in finished.stderr


def test_without_a_configuration_it_says_what_is_missing(image: Image) -> None:
    command = [*sandboxed(image, []), *image.exec_form("ENTRYPOINT"), *image.exec_form("CMD")]
    finished = subprocess.run(
        command, env=image.environment, capture_output=True, text=True, timeout=60, cwd=image.here("/var/lib/outboxd"),
        check=False,
    )  # fmt: skip
    assert finished.returncode == 2
    assert "/etc/outboxd" in finished.stdout + finished.stderr


@pytest.mark.skipif(not has_bubblewrap(), reason="needs bubblewrap")
def test_the_sandbox_is_one(image: Image) -> None:
    root = image.here("/opt/outboxd")
    script = (
        "import os, pathlib; print(os.getuid(), os.getgid(), os.getpid(), os.listdir('/tmp')); "
        f"print(os.access({root!r}, os.W_OK), os.access({image.here('/var/lib/outboxd')!r}, os.W_OK))"
    )
    command = [*sandboxed(image, []), image.here("/opt/outboxd/bin/python"), "-c", script]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    first, second = finished.stdout.splitlines()
    assert first.startswith("65532 0 1 ")
    assert second == "False True"


async def test_the_shop_lives_in_it(
    image: Image, stack_factory: StackFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make_daemon(configuration: str, environment: Mapping[str, str]) -> Daemon:
        return ImageDaemon(image, configuration, environment)

    stack = await stack_factory()
    spool = Path(image.here("/var/lib/outboxd")) / "spool"
    async with open_shop(stack, monkeypatch, make_daemon, spool=spool) as shop:
        if has_bubblewrap():
            assert isinstance(shop.daemon, ImageDaemon)
            namespaces = [Path(f"/proc/{process}/ns/pid").readlink() for process in (shop.daemon.pid(), "self")]
            assert namespaces[0] != namespaces[1]
        await tell_the_story(shop)
    lines = shop.daemon.log().splitlines()
    assert lines
    assert all(line.startswith("{") for line in lines), "logs are JSON"

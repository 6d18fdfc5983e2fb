"""Reads a Dockerfile and carries its instructions out in a plain folder, as far as a machine without an engine can."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_OWNED = ("/opt/", "/src", "/etc/outboxd", "/var/lib/outboxd")
"""Paths of the image that lie in the folder here; everything else is this machine's."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name and what follows it, continuation lines joined."""

    name: str
    argument: str


def instructions(text: str) -> list[Instruction]:
    """The Dockerfile's instructions in order."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    found = []
    for line in joined.splitlines():
        if line.strip():
            name, _, argument = line.strip().partition(" ")
            found.append(Instruction(name.upper(), argument.strip()))
    return found


@dataclass(slots=True)
class Image:
    """What a build made: the folder that stands for the image's root, and what the last stage says of running it."""

    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def exec_form(self, name: str) -> list[str]:
        """ENTRYPOINT or CMD, paths as they are here. Raises ValueError for the shell form."""
        words = json.loads(self.settings[name])
        return [self.here(word) for word in words]

    def here(self, text: str) -> str:
        """The text with the image's own paths replaced by where they lie here."""
        for path in _OWNED:
            text = re.sub(rf"(?<![\w/.-]){re.escape(path)}", f"{self.root}{path}", text)
        return text


class Build:
    """One build from a context folder. ``arguments`` are the `--build-arg`s."""

    def __init__(self, context: Path, root: Path, arguments: Mapping[str, str]) -> None:
        self._context = context
        self._arguments = arguments
        self._image = Image(root)
        self._values: dict[str, str] = {}
        self._folder = root

    def run(self, text: str) -> Image:
        """Carry the instructions out. Raises CalledProcessError, with the output, for a RUN that fails."""
        for instruction in instructions(text):
            getattr(self, f"_{instruction.name.lower()}")(instruction.argument)
        return self._image

    def _filled(self, text: str) -> str:
        return _VARIABLE.sub(lambda match: self._values.get(match[1], ""), text)

    def _from(self, argument: str) -> None:
        self._values = {"PATH": os.environ["PATH"]}
        self._image.environment, self._image.labels, self._image.settings = {}, {}, {}

    def _arg(self, argument: str) -> None:
        name, _, default = argument.partition("=")
        self._values[name] = self._arguments.get(name, default.strip('"'))

    def _env(self, argument: str) -> None:
        for name, value in _pairs(argument):
            self._values[name] = self._image.environment[name] = self._image.here(self._filled(value))

    def _label(self, argument: str) -> None:
        self._image.labels.update((name, self._filled(value)) for name, value in _pairs(argument))

    def _workdir(self, argument: str) -> None:
        self._folder = Path(self._image.here(argument))
        self._folder.mkdir(parents=True, exist_ok=True)

    def _copy(self, argument: str) -> None:
        if argument.startswith("--from="):
            _, source, target = argument.split()
            # Both stages share the folder, so that an environment's scripts keep their paths.
            assert source == target, "what a stage takes over lies at the same place"
            assert Path(self._image.here(source)).exists()
            return
        *sources, target = argument.split()
        for source in sources:
            self._copy_in(source, target)

    def _copy_in(self, source: str, target: str) -> None:
        origin = self._context / source
        assert _is_in_context(source, self._context), f"{source} is left out by .dockerignore"
        into = self._folder / target
        if origin.is_dir():
            shutil.copytree(origin, into, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            into.mkdir(parents=True, exist_ok=True)
            shutil.copy(origin, into)

    def _run(self, argument: str) -> None:
        command = self._image.here(argument)
        if os.geteuid() != 0:
            command = command.replace("--owner=65532 --group=0", "")
        environment = {**os.environ, **self._values, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        finished = subprocess.run(
            ["/bin/sh", "-ec", command],
            cwd=self._folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert finished.returncode == 0, f"RUN {argument}\n{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}"

    def _setting(self, name: str, argument: str) -> None:
        self._image.settings[name] = argument

    def _user(self, argument: str) -> None:
        self._setting("USER", argument)

    def _expose(self, argument: str) -> None:
        self._setting("EXPOSE", argument)

    def _stopsignal(self, argument: str) -> None:
        self._setting("STOPSIGNAL", argument)

    def _entrypoint(self, argument: str) -> None:
        self._setting("ENTRYPOINT", argument)

    def _cmd(self, argument: str) -> None:
        self._setting("CMD", argument)


def _pairs(argument: str) -> list[tuple[str, str]]:
    return [(name, quoted or plain) for name, quoted, plain in re.findall(r'([\w.]+)=(?:"([^"]*)"|(\S*))', argument)]


def _is_in_context(source: str, context: Path) -> bool:
    """Whether `.dockerignore`, which leaves out everything and names what comes back, names it."""
    lines = (context / ".dockerignore").read_text("utf-8").splitlines()
    return "*" in lines and f"!{source}" in lines

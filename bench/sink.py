"""The peer of batch handlers on the JVM: Connect's published file sink, writing into the null device."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from bench.connect import ConnectWorker
from bench.processes import CpuMeter, peak_mib, reset_peak
from bench.readers import Load, Reader
from bench.results import Consumption
from bench.servers import Servers
from bench.topic_log import committed

__all__ = ["COMMIT_MS", "ConnectSink"]

COMMIT_MS = 100
"""How often it commits. It counts nothing by itself: what it has done is what it has committed."""

_SETTINGS = {
    "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
    "tasks.max": "1",
    "file": "/dev/null",
    "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
    "consumer.override.auto.offset.reset": "earliest",
}
_POLL = 0.02
_PATIENCE = 120


class ConnectSink(Reader):
    """One worker, a new connector for each reading; the first one, unmeasured, warms the JVM up."""

    _turns = 0
    _is_warm = False

    async def set_up(self, folder: Path, servers: Servers) -> None:
        """Start the worker."""
        await super().set_up(folder, servers)
        settings = {"offset.flush.interval.ms": str(COMMIT_MS)}
        self._worker = ConnectWorker(folder, servers.kafka.bootstrap_servers, settings=settings)
        await self._worker.start()

    async def close(self) -> None:
        """End the worker."""
        await self._worker.remove()

    async def read(self, load: Load, *, repeat: int) -> Consumption:
        """From the first commit seen to the one of everything."""
        if not self._is_warm:
            await self._read(load, repeat)
            self._is_warm = True
        return await self._read(load, repeat)

    async def _read(self, load: Load, repeat: int) -> Consumption:
        self._turns += 1
        connector = f"sink-{self._turns}"
        meter = CpuMeter({"consumer": self._worker.pid} | self.servers.pids)
        reset_peak(self._worker.pid)
        admin = AIOKafkaAdminClient(bootstrap_servers=self.servers.kafka.bootstrap_servers)
        await admin.start()
        try:
            await self._worker.configure(connector, _SETTINGS | {"topics": load.topic})
            async with asyncio.timeout(_PATIENCE):
                first = await _reached(admin, f"connect-{connector}", 1)
                meter.restart()
                began = time.perf_counter()
                last = await _reached(admin, f"connect-{connector}", load.records)
                seconds = time.perf_counter() - began
        finally:
            await admin.close()
            await self._worker.delete(connector)
        counted = last - first
        if counted == 0:
            raise RuntimeError("everything was committed at once: it takes more records to see a rate")
        return Consumption(
            contender=self.name,
            repeat=repeat,
            measure=self.measure,
            records=load.records,
            rate=round(counted / seconds),
            seconds=round(seconds, 3),
            missing=0,
            extra=0,
            uncommitted=load.records - last,
            cpu=meter.per_row(counted),
            peak_mib=peak_mib(self._worker.pid),
        )


async def _reached(admin: AIOKafkaAdminClient, group: str, records: int) -> int:
    """Return how many the group has committed once there are ``records``; the caller sets the deadline."""
    while (count := sum((await committed(admin, group)).values())) < records:
        await asyncio.sleep(_POLL)
    return count

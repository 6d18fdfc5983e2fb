"""Sink `spool`: letters on the local disk, for when nothing else can take them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Annotated, ClassVar
from urllib.parse import quote

from pydantic import Field

from outboxd.api import Letter, PluginContext, PluginSettings, Refused, Size, Stored, parse_size
from outboxd.errors import SinkUnavailable
from outboxd_plugins.sinks.spool_log import Place, SpoolLog
from outboxd_plugins.sinks.spool_segment import encode_letter

__all__ = ["SpoolSink", "SpoolSinkSettings"]


class SpoolSinkSettings(PluginSettings):
    """Settings of sink `spool`."""

    directory: Annotated[str, Field(min_length=1)]
    """Where the spool lives: a directory that outlives the process, and the pod. Each daemon instance has a folder of
    its own in it, and in that each pipeline's chain."""
    max_size: Size = parse_size("1GiB")
    """The most that the spool of one chain may take; when it is full, letters wait for another sink."""


class SpoolSink:
    """Appends letters to segments, each with its checksum, and answers once they are on the disk (fsync).

    One process at a time: a lock file keeps a second daemon with the same instance name out. What was carried home is
    removed.
    """

    Settings: ClassVar[type[PluginSettings]] = SpoolSinkSettings
    is_durable: ClassVar[bool] = True
    is_local: ClassVar[bool] = True
    """Each replica has a spool of its own, and drains it under a lease of its own."""

    def __init__(self, settings: SpoolSinkSettings, context: PluginContext) -> None:
        self._settings = settings
        self._context = context
        parts = (context.instance, context.pipeline, context.name)
        self._directory = str(PurePosixPath(settings.directory, *map(_folder, parts)))
        self._lock_file = f"{self._directory}/lock"
        self._log: SpoolLog | None = None
        self._idle = asyncio.Lock()
        self._appending: asyncio.Task[Place] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._damaged = context.meter.create_counter(
            "outboxd_spool_damaged_entries", description="Entries of the spool whose checksum does not fit"
        )

    async def open(self) -> None:
        """Lock the spool and see to what the last process left. Raises SinkUnavailable."""
        files = self._context.files
        try:
            await files.make_directory(self._directory)
            if not await files.lock(self._lock_file):
                raise SinkUnavailable(
                    f"another process uses the spool {self._directory}",
                    suggestion="give each daemon its own daemon.instance_id, or stop the other process",
                )
            try:
                self._log = await SpoolLog.open(files, self._directory, self._settings.max_size, self._birth())
            except BaseException:
                await files.unlock(self._lock_file)
                raise
        except OSError as error:
            raise _unavailable(self._directory, error) from error

    async def write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        """Append the letters that could ever fit and wait for the disk. Raises SinkUnavailable, also when it is full."""
        log = self._opened()
        lines = [encode_letter(letter) for letter in letters]
        fits = [len(line) <= self._settings.max_size for line in lines]
        data = b"".join(line for line, fit in zip(lines, fits, strict=True) if fit)
        place = await self._append(log, data) if data else Place(segment=0, offset=0)
        refused = Refused(reason=f"larger than the whole spool may be (max_size {self._settings.max_size} bytes)")
        return [Stored(detail=f"segment {place.segment}") if fit else refused for fit in fits]

    async def read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
        """Letters after ``position`` in the order of their writing. Raises SinkUnavailable.

        A damaged entry is counted, logged and passed over; its segment is kept for a person to look at.
        """
        log = self._opened()
        try:
            page = await log.read(position, limit)
        except OSError as error:
            raise _unavailable(self._directory, error) from error
        for damage in page.damages:
            self._damaged.add(1, {"pipeline": self._context.pipeline, "sink": self._context.name})
            self._context.logger.error("spool_entry_damaged", sink=self._context.name, damage=damage)
        return page.letters, page.position

    async def release(self, position: str) -> None:
        """Remove what lies before ``position``: it is home. Raises SinkUnavailable."""
        log = self._opened()
        try:
            async with self._idle:
                await log.release(position)
        except OSError as error:
            raise _unavailable(self._directory, error) from error

    async def close(self) -> None:
        """Wait for the disk, then let another process in."""
        if self._log is None:
            return
        self._log = None
        # Shielded: behind a slow disk the caller's time runs out, and the lock must be given back all the same.
        self._closing = asyncio.create_task(self._unlock(), name=f"close spool {self._context.name}")
        await asyncio.shield(self._closing)

    async def _unlock(self) -> None:
        async with self._idle:
            await self._context.files.unlock(self._lock_file)

    async def _append(self, log: SpoolLog, data: bytes) -> Place:
        await self._idle.acquire()
        # The thread that writes cannot be cancelled: a second append beside it would tear both. Whoever gives up waiting
        # leaves the append to end by itself, and the lock with it.
        task = asyncio.create_task(log.append(data), name=f"append to spool {self._context.name}")
        task.add_done_callback(self._appended)
        self._appending = task
        try:
            return await asyncio.shield(task)
        except OSError as error:
            raise _unavailable(self._directory, error) from error

    def _appended(self, task: asyncio.Task[Place]) -> None:
        self._appending = None
        self._idle.release()
        if not task.cancelled():
            task.exception()  # whoever waited has it; nobody else wants it

    def _opened(self) -> SpoolLog:
        if self._log is None:
            raise SinkUnavailable(f"the spool {self._directory} is not open")
        return self._log

    def _birth(self) -> str:
        return self._context.clock.now().strftime("%Y%m%dT%H%M%S%f")


def _folder(name: str) -> str:
    """A file name for any name: no separator, and never `.` or `..`."""
    return quote(name, safe="").replace(".", "%2E") if set(name) <= {"."} else quote(name, safe="")


def _unavailable(directory: str, error: OSError) -> SinkUnavailable:
    return SinkUnavailable(f"the spool {directory} cannot be used: {error.strerror or error}")

"""The segments of a spool on disk: append-only, and never written to again after a crash or a failed append.

A position names the spool's birth, a segment and an offset in it. Each opening, and each failed append, goes on in a new
segment, and no number is given twice: so an offset, once read, never comes to lie before new letters, whatever a crash
took from the end of the segment. A spool that was wiped has another birth: old positions count as none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from outboxd.api import Files, Letter
from outboxd.errors import SinkUnavailable
from outboxd_plugins.sinks.spool_segment import Damaged, entries

__all__ = ["Page", "Place", "SpoolLog"]

_SUFFIX: Final = ".letters"
_DAMAGED: Final = ".damaged"
_BIRTH: Final = "birth"
_CHUNK: Final = 1024 * 1024
_PAGE_BYTES: Final = 8 * 1024 * 1024
_LARGEST_SEGMENT: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A byte of the spool."""

    segment: int
    offset: int


@dataclass(slots=True, kw_only=True)
class Page:
    """What one read found: letters, damaged entries in words, and the position after them."""

    letters: Sequence[Letter]
    position: str
    damages: Sequence[str] = field(default=())


class SpoolLog:
    """The segments of one directory, which this process alone writes. Its methods raise OSError."""

    def __init__(self, files: Files, directory: str, max_size: int, birth: str) -> None:
        self._files = files
        self._directory = directory
        self._max_size = max_size
        self._segment_size = min(_LARGEST_SEGMENT, max(1, max_size // 4))
        self._birth = birth
        self._sizes: dict[int, int] = {}
        self._writable: int | None = None

    @classmethod
    async def open(cls, files: Files, directory: str, max_size: int, birth: str) -> SpoolLog:
        """The log of this directory; ``birth`` names it if it is new. Cuts what the last process left torn."""
        path = f"{directory}/{_BIRTH}"
        if await files.size(path) == 0:
            await files.replace(path, birth.encode("ascii"))
        known = (await files.read(path, 0, 64)).decode("ascii", "replace")
        log = cls(files, directory, max_size, known)
        for name in await files.names(directory):
            if name.endswith(_SUFFIX) and name.removesuffix(_SUFFIX).isdigit():
                await log._adopt(int(name.removesuffix(_SUFFIX)))
        return log

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(self._sizes.values())

    async def append(self, data: bytes) -> Place:
        """Append whole lines durably; one call at a time. Raises SinkUnavailable when the spool is full."""
        if self.size + len(data) > self._max_size:
            raise SinkUnavailable(
                f"the spool {self._directory} is full: {self.size} of {self._max_size} bytes are taken",
                suggestion="bring the other sinks back so that it is drained, or raise max_size",
            )
        segment = self._writable
        if segment is None or self._sizes[segment] >= self._segment_size:
            segment = self._writable = max(self._sizes, default=0) + 1
            self._sizes[segment] = 0
        before = self._sizes[segment]
        try:
            await self._files.append(self._path(segment), data)
        except BaseException:
            # After a failed fsync nobody knows what the disk has; this segment takes nothing more.
            self._writable = None
            with contextlib.suppress(OSError):
                await self._files.truncate(self._path(segment), before)
            with contextlib.suppress(OSError):
                self._sizes[segment] = await self._files.size(self._path(segment))
                if self._sizes[segment] == 0:  # a full disk, tried again for hours, must not use up a number each time
                    self._writable = segment
            raise
        self._sizes[segment] = before + len(data)
        return Place(segment=segment, offset=before)

    async def read(self, position: str | None, limit: int) -> Page:
        """Up to ``limit`` letters after ``position``, and no more than some megabytes of them.

        A damaged line is copied to a file of its own for a person to look at, and passed over.
        """
        place = self._place(position)
        letters: list[Letter] = []
        damages: list[str] = []
        room = _PAGE_BYTES
        for segment in sorted(number for number in self._sizes if number >= place.segment):
            if segment > place.segment:
                place = Place(segment=segment, offset=0)
            while len(letters) < limit and room > 0 and (chunk := await self._lines(place)):
                for entry in islice(entries(chunk, place.offset), limit - len(letters)):
                    room -= entry.end - place.offset
                    place = Place(segment=segment, offset=entry.end)
                    if isinstance(entry, Damaged):
                        damages.append(await self._set_aside(segment, entry))
                    else:
                        letters.append(entry.letter)
            if len(letters) >= limit or room <= 0:
                break
        return Page(letters=letters, position=self._text(place), damages=damages)

    async def release(self, position: str) -> None:
        """Remove segments that lie wholly before ``position``; never while an append is under way.

        The last one is emptied, not removed: its name keeps its number from being given again.
        """
        place = self._place(position)
        last = max(self._sizes, default=0)
        for segment in sorted(self._sizes):
            is_behind = segment < place.segment or (segment == place.segment and place.offset >= self._sizes[segment])
            if not is_behind:
                continue
            if segment < last:
                await self._files.remove(self._path(segment))
                del self._sizes[segment]
            elif self._sizes[segment]:
                self._writable = None
                await self._files.truncate(self._path(segment), 0)
                self._sizes[segment] = 0

    async def _adopt(self, segment: int) -> None:
        """Take over a segment of an earlier process, and cut off the line that a crash tore."""
        path = self._path(segment)
        size = end = await self._files.size(path)
        while end > 0:
            start = max(0, end - _CHUNK)
            newline = (await self._files.read(path, start, end - start)).rfind(b"\n")
            if newline >= 0:
                end = start + newline + 1
                break
            end = start
        if end < size:
            await self._files.truncate(path, end)
        self._sizes[segment] = end

    async def _set_aside(self, segment: int, damaged: Damaged) -> str:
        path = f"{self._directory}/{segment:010d}-{damaged.end}{_DAMAGED}"
        await self._files.replace(path, damaged.line)
        return f"{path}: {damaged.reason}"

    async def _lines(self, place: Place) -> bytes:
        """From ``place`` on to the end of a line: at least one whole line if there is one."""
        chunk = b""
        size = self._sizes[place.segment]
        while (start := place.offset + len(chunk)) < size and b"\n" not in chunk:
            piece = await self._files.read(self._path(place.segment), start, min(_CHUNK, size - start))
            if not piece:
                break
            chunk += piece
        return chunk[: chunk.rfind(b"\n") + 1]

    def _path(self, segment: int) -> str:
        return f"{self._directory}/{segment:010d}{_SUFFIX}"

    def _text(self, place: Place) -> str:
        return f"{self._birth}/{place.segment}:{place.offset}"

    def _place(self, position: str | None) -> Place:
        """The place of a position; the start for one of another spool or of none."""
        birth, _, rest = (position or "").rpartition("/")
        segment, _, offset = rest.partition(":")
        is_known = birth == self._birth and segment.isdigit() and offset.isdigit()
        if not is_known or int(segment) > max(self._sizes, default=0):  # of another spool, or segments were taken away
            return Place(segment=0, offset=0)
        return Place(segment=int(segment), offset=int(offset))

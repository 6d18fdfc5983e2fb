"""Dead-letter sinks in memory that work, refuse, fail, hang or store too late, as a test wants them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ClassVar

from outboxd.api import PluginSettings
from outboxd.records import Letter, Refused, Stored
from outboxd.testing.fakes.faults import Faults

__all__ = ["FakeReadableSink", "FakeSink", "StubbornSink"]


class FakeSink:
    """A sink that keeps its letters in ``letters``. ``faults`` may befall `open`, `write`, `read` and `close`.

    ``refuses`` gives the reason for which a letter is refused, None for one that is stored. A `Late` fault stores after
    the caller was told that it failed; a `Hung` one never answers.
    """

    Settings: ClassVar[type[PluginSettings]] = PluginSettings
    is_durable: ClassVar[bool] = True

    def __init__(self, faults: Faults | None = None, refuses: Callable[[Letter], str | None] = lambda _: None) -> None:
        self.faults = Faults() if faults is None else faults
        self.refuses = refuses
        self.letters: list[Letter] = []
        self.is_open = False

    async def open(self) -> None:
        """Open it."""

        def effect() -> None:
            self.is_open = True

        await self.faults.around("open", effect)

    async def close(self) -> None:
        """Close it."""

        def effect() -> None:
            self.is_open = False

        await self.faults.around("close", effect)

    async def write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        """Keep the letters that are not refused; an open sink only."""
        return await self.faults.around("write", lambda: [self._take(letter) for letter in letters])

    def _take(self, letter: Letter) -> Stored | Refused:
        if not self.is_open:
            raise AssertionError("a sink was written to before it was open")
        if (reason := self.refuses(letter)) is not None:
            return Refused(reason=reason)
        self.letters.append(letter)
        return Stored(detail=f"entry {len(self.letters) - 1}")


class FakeReadableSink(FakeSink):
    """A `FakeSink` whose letters can be read back; ``released`` is the last position that was released."""

    released: str | None = None

    async def read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
        """Letters in the order of their writing; the position is the index of the next one."""

        def effect() -> tuple[Sequence[Letter], str]:
            start = int(position or 0)
            letters = self.letters[start : start + limit]
            return letters, str(start + len(letters))

        return await self.faults.around("read", effect)

    async def release(self, position: str) -> None:
        """Remember how far everything is home."""

        def effect() -> None:
            self.released = position

        await self.faults.around("release", effect)


class StubbornSink(FakeSink):
    """Ignores that its write is cancelled, until `let_go`; then it stores the letters after all."""

    def __init__(self) -> None:
        super().__init__()
        self._free = asyncio.Event()

    def let_go(self) -> None:
        """End every call that hangs."""
        self._free.set()

    async def write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        """Hang whatever is asked of it."""
        while not self._free.is_set():
            try:
                await self._free.wait()
            except asyncio.CancelledError:  # the fault that this double is for
                continue
        return await super().write(letters)

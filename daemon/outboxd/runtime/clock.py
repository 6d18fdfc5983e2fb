"""Real time, behind the port `Clock`."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

__all__ = ["SystemClock"]


class SystemClock:
    """The computer's clocks; sleeping is the event loop's."""

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    def now(self) -> datetime:
        """Wall time, aware, UTC."""
        return datetime.now(UTC)

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)

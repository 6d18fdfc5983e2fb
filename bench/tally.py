"""Counts what one consuming process handles, inside that process, and says when it had everything.

What each record costs here, all contenders pay alike.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Final

__all__ = ["EXPECTED", "REPORT", "Tally"]

EXPECTED: Final = "BENCH_EXPECTED"
REPORT: Final = "BENCH_REPORT"
"""Environment variables: how many records there are, and the file that takes the report."""


class Tally:
    """Counts records, and adds up their offsets: of so many records in so many partitions only one sum is right."""

    def __init__(self, expected: int, report: Path) -> None:
        self.count = 0
        self._offsets = 0
        self._expected = expected
        self._report = report
        self._began = self._began_cpu = self._seconds = self._cpu = 0.0

    @classmethod
    def from_environment(cls) -> Tally:
        """For a process that was given the two variables."""
        return cls(int(os.environ[EXPECTED]), Path(os.environ[REPORT]))

    def one(self, offset: int) -> None:
        """A record was handled."""
        if not self.count:
            self._begin()
        self.count += 1
        self._offsets += offset
        if self.count >= self._expected:
            self._finish()

    def many(self, offsets: list[int]) -> None:
        """A batch was handled."""
        if not self.count:
            self._begin()
        self.count += len(offsets)
        self._offsets += sum(offsets)
        if self.count >= self._expected:
            self._finish()

    def _begin(self) -> None:
        self._began, self._began_cpu = time.perf_counter(), time.process_time()

    def _finish(self) -> None:
        """Write the report; once more for each record beyond what was expected."""
        if not self._seconds:
            self._seconds = time.perf_counter() - self._began
            self._cpu = time.process_time() - self._began_cpu
        new = self._report.with_suffix(".new")
        found = {"count": self.count, "offsets": self._offsets, "seconds": self._seconds, "cpu": self._cpu}
        new.write_text(json.dumps(found), "utf-8")
        new.replace(self._report)

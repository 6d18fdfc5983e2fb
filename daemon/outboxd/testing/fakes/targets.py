"""Target states in memory, which outlive the pipelines and the runs that ask for them."""

from __future__ import annotations

from collections.abc import Mapping

from outboxd.ports import Target
from outboxd.testing.fakes.faults import Faults

__all__ = ["FakeTargets"]


class FakeTargets:
    """The port TargetStore; ``faults`` may befall each call."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = Faults() if faults is None else faults
        self._targets: dict[str, Target] = {}

    async def load(self) -> Mapping[str, Target]:
        """Every target that was saved last."""
        return await self.faults.around("load", lambda: dict(self._targets))

    async def save(self, pipeline: str, target: Target) -> None:
        """Keep it in place of the one before."""

        def effect() -> None:
            self._targets[pipeline] = target

        await self.faults.around("save", effect)

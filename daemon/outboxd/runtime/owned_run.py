"""A run together with everything that was made for it: what one start opens, its end closes."""

from __future__ import annotations

from collections.abc import Callable

from outboxd.pipeline.run import Health, PipelineRun
from outboxd.runtime.connections import ConnectionUse, OpenConnections
from outboxd.runtime.executor import ThreadExecutor

__all__ = ["OwnedRun", "RunResources", "owned"]


class RunResources:
    """The connections and threads of one start."""

    def __init__(
        self, connections: OpenConnections, executor: ThreadExecutor, *, pipeline: str, use: ConnectionUse
    ) -> None:
        self.connections = connections
        self._use = use
        use.began(pipeline, connections)
        self.executor = executor
        self._is_stopping = False

    def is_stopping(self) -> bool:
        """Whether the start was asked to end: what plugins are told."""
        return self._is_stopping

    def stop(self) -> None:
        """The start is asked to end."""
        self._is_stopping = True

    async def close(self) -> None:
        """Give everything back."""
        self._is_stopping = True
        self._use.ended(self.connections)
        await self.connections.close()
        self.executor.close()


class OwnedRun:
    """A `PipelineRun` that closes its resources when it ends, however that is."""

    def __init__(self, run: PipelineRun, resources: RunResources) -> None:
        self._run = run
        self._resources = resources

    async def run(self) -> None:
        """As `PipelineRun.run`."""
        try:
            await self._run.run()
        finally:
            await self._resources.close()

    def stop(self) -> None:
        """As `PipelineRun.stop`."""
        self._resources.stop()
        self._run.stop()

    def health(self) -> Health:
        """As `PipelineRun.health`."""
        return self._run.health()


async def owned(resources: RunResources, make: Callable[[], PipelineRun]) -> OwnedRun:
    """Open the resources and make the run of them; when that fails nothing stays open."""
    try:
        await resources.connections.open()
        return OwnedRun(make(), resources)
    except BaseException:
        await resources.close()
        raise

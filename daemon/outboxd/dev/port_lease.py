"""A TCP port on 127.0.0.1 that is ours for as long as we keep it, also while its server is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path
from typing import IO

from outboxd.errors import DevServerFailed

__all__ = ["PortLease"]

# Below the ephemeral range of Linux (32768) and macOS (49152): an outgoing connection of anybody never takes one of
# these, and a client that reconnects to a stopped server cannot be given the server's own port and meet itself.
_FIRST, _LAST = 20_000, 32_000


class PortLease:
    """A port with a lock file beside it, so that stacks side by side never choose the same one.

    The lock goes with the process that holds it, however that ends.
    """

    def __init__(self, *, port: int, lock: IO[str]) -> None:
        self.port = port
        self._lock = lock

    @classmethod
    def acquire(cls, preferred: int | None = None) -> PortLease:
        """Lease ``preferred`` when it is free, else any free port. Raises DevServerFailed when there is none."""
        # Random, so that two processes that start together rarely try the same ones.
        candidates = random.sample(range(_FIRST, _LAST), k=200)
        for port in [preferred, *candidates] if preferred else candidates:
            lease = cls._try(port)
            if lease is not None:
                return lease
        raise DevServerFailed(
            f"no free port on 127.0.0.1 between {_FIRST} and {_LAST}",
            suggestion="Stop the servers that listen there.",
        )

    @classmethod
    def _try(cls, port: int) -> PortLease | None:
        lock = (_lock_folder() / f"{port}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock keeps our own kind away; the bind finds everybody else.
            with contextlib.closing(socket.socket()) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            return None
        return cls(port=port, lock=lock)

    def release(self) -> None:
        """Give the port back; harmless when repeated."""
        self._lock.close()


def _lock_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"outboxd-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder

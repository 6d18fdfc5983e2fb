"""Target states in a local file: what the operator wants survives a restart of this replica.

The file is `<state directory>/<daemon name>/targets.json`; the state directory is `OUTBOXD_STATE_DIR`, else `.outboxd`
in the working directory. With `daemon.state: CONNECTION` the targets stand in Postgres instead, for all replicas.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Final

from outboxd.errors import ConfigurationError
from outboxd.lifecycle import TargetState
from outboxd.ports import Target
from outboxd.runtime.executor import ThreadExecutor
from outboxd.runtime.files import replace_durably

__all__ = ["FileTargetStore", "default_target_file"]

_ENVIRONMENT: Final = "OUTBOXD_STATE_DIR"
_REMEDY: Final = (
    f"make the folder writable, point {_ENVIRONMENT} elsewhere, or set daemon.state to a Postgres connection"
)


def default_target_file(daemon: str) -> Path:
    """Where the targets of the daemon with this name stand."""
    return Path(os.environ.get(_ENVIRONMENT) or ".outboxd") / daemon / "targets.json"


class FileTargetStore:
    """The port `TargetStore` on one JSON file, replaced atomically and durably at each change."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # One thread: changes are written in the order in which they were asked for.
        self._thread = ThreadExecutor(threads=1, name="targets")

    async def load(self) -> Mapping[str, Target]:
        """Every stored target; none when there is no file. Raises ConfigurationError for a file that is not ours."""
        return await self._thread.run(self._read)

    async def save(self, pipeline: str, target: Target) -> None:
        """Write the target down. Raises ConfigurationError when the file cannot be written."""
        await self._thread.run(self._write, pipeline, target)

    def close(self) -> None:
        """Let the thread go."""
        self._thread.close()

    def _read(self) -> dict[str, Target]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror}", suggestion=_REMEDY) from error
        try:
            return {name: _target(fields) for name, fields in json.loads(text).items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Starting a pipeline that somebody paused is worse than not starting: nothing is guessed.
            raise ConfigurationError(
                f"{self._path} does not hold target states",
                suggestion="remove the file (every pipeline then starts), and pause again what was paused",
            ) from error

    def _write(self, pipeline: str, target: Target) -> None:
        targets = self._read()
        targets[pipeline] = target
        document = {name: _fields(value) for name, value in sorted(targets.items())}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_durably(self._path, json.dumps(document, indent=2).encode() + b"\n")
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}", suggestion=_REMEDY) from error


def _fields(target: Target) -> dict[str, object]:
    return asdict(target) | {"at": target.at.isoformat()}


def _target(fields: Mapping[str, str]) -> Target:
    return Target(
        state=TargetState(fields["state"]),
        actor=fields["actor"],
        at=datetime.fromisoformat(fields["at"]),
        reason=fields.get("reason"),
    )

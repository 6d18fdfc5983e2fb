"""What a load has read: which files and folders, and a digest of what each held, so that a change can be told from none.

Contents are compared, not times or inode numbers: a ConfigMap's swapped link, an editor's rename and a plain write look
alike, and a file that was written again as it was is no change.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

__all__ = ["Footprint", "Seen", "look", "yaml_files"]

MAX_FILE: Final = 8 * 1024 * 1024
_MAX_TREE: Final = 1000


class _Place(NamedTuple):
    kind: Literal["file", "folder", "tree"]
    path: str


Seen: TypeAlias = Mapping[_Place, str]
"""Digests by place; for what cannot be read, why. Equal mappings mean that nothing has changed."""


class Footprint:
    """Reads files and remembers what they held; what is missing is remembered, too: it may come."""

    def __init__(self) -> None:
        self._seen: dict[_Place, str] = {}

    @property
    def seen(self) -> Seen:
        """Everything that was read or noted so far."""
        return dict(self._seen)

    def read(self, path: Path, limit: int) -> bytes:
        """The file's first ``limit`` bytes and one more where there is more. Raises OSError, ValueError for a NUL."""
        place = _Place("file", os.path.abspath(path))  # noqa: PTH100  # as it is named: links are followed at each look
        try:
            with path.open("rb") as file:
                content = file.read(MAX_FILE + 1)
                is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        except (OSError, ValueError) as error:
            self._seen[place] = _why(error)
            raise
        self._seen[place] = _digest(content) if is_regular else _SPECIAL
        return content[: limit + 1]

    def note(self, path: Path) -> None:
        """Remember a file that somebody else reads."""
        self._seen[_Place("file", os.path.abspath(path))] = _state(path)  # noqa: PTH100

    def note_folder(self, folder: Path) -> None:
        """Remember which `*.yaml` a folder has; what each holds is remembered when it is read."""
        names = _digest("\0".join(file.name for file in yaml_files(folder)).encode("utf-8", "surrogateescape"))
        place = _Place("folder", os.path.abspath(folder))  # noqa: PTH100
        self._seen[place] = names if folder.is_dir() else _state(folder)

    def note_tree(self, folder: Path) -> None:
        """Remember every file below a folder; of a very large one the first thousand."""
        found: list[str] = []
        for directory, folders, names in os.walk(folder, followlinks=True):
            # A mounted Secret holds everything twice: in `..data` too, under a name that is new each time.
            folders[:] = sorted(name for name in folders if not name.startswith(".."))
            found += (os.path.join(directory, name) for name in sorted(names) if not name.startswith(".."))  # noqa: PTH118
            if len(found) >= _MAX_TREE:
                break
        states = (f"{name}\0{_state(Path(name))}" for name in found[:_MAX_TREE])
        digest = _digest("\0".join(states).encode("utf-8", "surrogateescape"))
        self._seen[_Place("tree", os.path.abspath(folder))] = digest  # noqa: PTH100


def look(seen: Seen) -> Seen:
    """The same places as they are now, and what has come into their folders."""
    now = Footprint()
    for place in seen:
        match place.kind:
            case "file":
                now.note(Path(place.path))
            case "folder":
                now.note_folder(Path(place.path))
            case "tree":
                now.note_tree(Path(place.path))
    return now.seen


def yaml_files(folder: Path) -> Sequence[Path]:
    """A folder's `*.yaml` that are not hidden, by name."""
    try:
        return sorted(file for file in folder.glob("*.yaml") if not file.name.startswith(".") and file.is_file())
    except OSError:
        return ()


_SPECIAL: Final = "not a regular file"
"""A pipe or a device: reading it again would wait, or give something else."""


def _state(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return errno.errorcode[errno.EISDIR]
        if not stat.S_ISREG(mode):
            return _SPECIAL
        with path.open("rb") as file:
            return _digest(file.read(MAX_FILE + 1))
    except (OSError, ValueError) as error:
        return _why(error)


def _why(error: OSError | ValueError) -> str:
    number = error.errno if isinstance(error, OSError) else None
    return errno.errorcode.get(number or 0, type(error).__name__)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()

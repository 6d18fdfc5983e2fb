"""Kafka Connect's, Debezium's and the file sink's jars, fetched once per computer, each checked against its SHA-256.

``python -m bench.connect_jars`` resolves them anew and writes the list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from outboxd.dev.jars import KAFKA_VERSION, KafkaJars, locked, maven, sha256

__all__ = ["DEBEZIUM_VERSION", "ConnectJars"]

DEBEZIUM_VERSION = "3.6.1.Final"

LIST = Path(__file__).with_name("connect_jars.txt")
_WORKER = f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}"
_PLUGINS = {
    "debezium": f"io.debezium:debezium-connector-postgres:{DEBEZIUM_VERSION}",
    "file": f"org.apache.kafka:connect-file:{KAFKA_VERSION}",
}
_LOG_BINDING = ("log4j-api", "log4j-core", "log4j-slf4j-impl")
_HEAD = f"""\
# Kafka Connect {KAFKA_VERSION} and, each as a plugin of its own, Debezium {DEBEZIUM_VERSION} and the file connectors:
# where it belongs, group:artifact:version, SHA-256. Written by `python -m bench.connect_jars`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectJars:
    """A worker's class path and the folder with one folder for each plugin, as `plugin.path` wants it."""

    class_path: tuple[Path, ...]
    plugins: Path

    @classmethod
    async def ensure(cls) -> ConnectJars:
        """Fetch what is missing, beside Kafka's own jars. Raises RuntimeError for a jar with other bytes."""
        return await asyncio.to_thread(cls._ensure)

    @classmethod
    def _ensure(cls) -> ConnectJars:
        kafka = KafkaJars.ensure()
        folder = kafka.folder.with_name(f"connect-{KAFKA_VERSION}-{DEBEZIUM_VERSION}")
        with locked(folder):
            jars = [(place, _ensure_jar(folder, place, *rest)) for place, *rest in _read()]
        worker = [jar for place, jar in jars if place == "worker"]
        binding = [jar for jar in kafka.class_path if any(name in jar.name for name in _LOG_BINDING)]
        return cls(class_path=(*worker, *binding), plugins=folder / "plugins")


def _read() -> list[list[str]]:
    return [line.split() for line in LIST.read_text("utf-8").splitlines() if not line.startswith("#")]


def _ensure_jar(folder: Path, place: str, coordinate: str, digest: str) -> Path:
    home = folder / place if place == "worker" else folder / "plugins" / place
    jar = home / f"{coordinate.replace(':', '-')}.jar"
    if jar.exists():
        return jar
    home.mkdir(parents=True, exist_ok=True)
    group, artifact, version = coordinate.split(":")
    with TemporaryDirectory(prefix="fetch-", dir=folder) as scratch:
        fetched: Path = maven(Path(scratch)).project(group, artifact).at_version(version).artifact().resolve()
        if sha256(fetched) != digest:
            raise RuntimeError(f"{coordinate} has other bytes than those recorded in {LIST.name}")
        fetched.replace(jar)
    return jar


def main() -> None:
    """Write the list beside this module (fetches every jar)."""
    with TemporaryDirectory() as scratch:
        context = maven(Path(scratch))
        worker = _resolved(context, _WORKER)
        provided = {_name(jar) for jar in worker}
        lines = sorted(f"worker {_line(jar)}" for jar in worker)
        for plugin, coordinate in _PLUGINS.items():
            # What the worker has already must not come a second time in another version.
            own = [jar for jar in _resolved(context, coordinate) if _name(jar) not in provided]
            lines += sorted(f"{plugin} {_line(jar)}" for jar in own)
    LIST.write_text(_HEAD + "".join(f"{line}\n" for line in lines), "utf-8")


def _resolved(context: Any, coordinate: str) -> Sequence[Any]:  # jgo's types do not hold for a strict checker
    from jgo.maven import Dependency

    group, name, version = coordinate.split(":")
    wanted = Dependency(context.project(group, name).at_version(version).artifact())
    roots, transitive = context.resolver.resolve([wanted])
    needed = [*roots, *(dependency for dependency in transitive if dependency.scope in {"compile", "runtime"})]
    return [dependency.artifact for dependency in needed]


def _name(jar: Any) -> str:
    return f"{jar.groupId}:{jar.artifactId}"


def _line(jar: Any) -> str:
    return f"{_name(jar)}:{jar.version} {sha256(jar.resolve())}"


if __name__ == "__main__":
    main()

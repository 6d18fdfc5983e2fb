"""One Postgres connection of the configuration: a pool in which nothing waits without a deadline.

It keeps no session state, so that PgBouncer's transaction pooling works: no named statements unless asked for, no
session settings or locks, no LISTEN; every call is one statement or one transaction.
"""

from __future__ import annotations

import asyncio
import socket
import ssl as tls
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg
from asyncpg.pool import PoolConnectionProxy
from asyncpg.transaction import Transaction

from outboxd.errors import DatabaseUnreachable, OutboxdError
from outboxd.postgres.translation import is_connection_lost, is_rerun_safe, translated

Row = asyncpg.Record
if TYPE_CHECKING:  # generic in the stubs only
    Pool = asyncpg.Pool[Row]
    Session = PoolConnectionProxy[Row]
    DriverConnection = asyncpg.Connection[Row]
else:
    Pool, Session, DriverConnection = asyncpg.Pool, PoolConnectionProxy, asyncpg.Connection

__all__ = ["Connector", "Row", "Session"]

_T = TypeVar("_T")

_DRIVER_ERRORS: Final = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)

_RERUNS: Final = 2
_LAST_WORD: Final = 1.0  # seconds for a cancel request to be heard before the connection is terminated
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # seconds; count


class _PooledConnection(DriverConnection):
    """A connection without session state: nothing to reset when it goes back, which saves a round trip per call."""

    __slots__ = ()

    def get_reset_query(self) -> str:
        return ""

    def keep_alive(self, silence: float) -> None:
        """Let the kernel find a dead peer; ``silence`` in seconds bounds how long sent bytes stay unacknowledged."""
        found = self._transport.get_extra_info("socket")  # type: ignore[attr-defined]  # not in the stubs
        if found is None or found.family == getattr(socket, "AF_UNIX", None):
            return
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                found.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(silence * 1000))


class Connector:
    """A pool, opened without talking to the server, so that the daemon starts although Postgres is away.

    ``statement_timeout`` bounds each statement and each transaction, ``connect_timeout`` waiting for a connection, a
    new one included. ``statement_cache_size`` above 0 keeps prepared statements in the session: only for servers
    without a pooler in front. Every call raises DatabaseUnreachable (retriable: an outage), DatabaseDenied,
    SchemaBehind or StatementFailed.
    """

    def __init__(
        self,
        *,
        name: str,
        dsn: str | None = None,
        host: str | None = None,
        port: int | None = None,
        database: str | None = None,
        user: str | None = None,
        password: str | None = None,
        ssl: tls.SSLContext | str | None = None,
        pool_max_size: int = 4,
        statement_timeout: timedelta = timedelta(seconds=30),
        connect_timeout: timedelta = timedelta(seconds=10),
        close_timeout: timedelta = timedelta(seconds=5),
        statement_cache_size: int = 0,
    ) -> None:
        self.name = name
        self.statement_timeout = statement_timeout.total_seconds()
        self._connect_timeout = connect_timeout.total_seconds()
        self._close_timeout = close_timeout.total_seconds()
        self._pool_max_size = pool_max_size
        self._arguments: dict[str, Any] = {
            "dsn": dsn,
            "host": host,
            "port": port,
            "database": database,
            "user": user,
            "password": password,
            "statement_cache_size": statement_cache_size,
        }
        if ssl is not None:
            self._arguments["ssl"] = ssl
        if dsn is None or "target_session_attrs" not in dsn:
            # After a failover the old primary may still answer: never take one that refuses writes.
            self._arguments["target_session_attrs"] = "read-write"
        self._pool: Pool | None = None

    def __repr__(self) -> str:
        return f"Connector({self.name!r})"

    async def open(self) -> None:
        """Make the pool. Talks to nobody; an unreachable server shows itself in the first call."""
        if self._pool is not None:
            return
        self._pool = await asyncpg.create_pool(
            min_size=0,
            max_size=self._pool_max_size,
            init=self._prepare,
            connection_class=_PooledConnection,
            timeout=self._connect_timeout,
            command_timeout=self.statement_timeout,
            server_settings={"application_name": "outboxd"},
            **self._arguments,
        )

    async def close(self) -> None:
        """Close the pool; connections that do not end in time are terminated."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(self._close_timeout):
                await pool.close()
        except _DRIVER_ERRORS:
            pool.terminate()  # pool.close has begun to do so; this also ends what an acquire made meanwhile

    # -- statements --------------------------------------------------------------------------------------------------

    async def fetch(self, sql: str, *arguments: object) -> Sequence[Row]:
        """Run one statement in a transaction of its own; its rows."""

        async def work(session: Session) -> Sequence[Row]:
            return await session.fetch(sql, *arguments)

        return await self._run(work)

    async def fetch_row(self, sql: str, *arguments: object) -> Row | None:
        """Run one statement in a transaction of its own; its first row."""
        rows = await self.fetch(sql, *arguments)
        return rows[0] if rows else None

    async def execute(self, sql: str, *arguments: object) -> str:
        """Run one statement in a transaction of its own; Postgres's command tag."""

        async def work(session: Session) -> str:
            return await session.execute(sql, *arguments)

        return await self._run(work)

    async def in_transaction(self, work: Callable[[Session], Awaitable[_T]]) -> _T:
        """Run ``work`` in a transaction and commit it, all within one statement's deadline.

        ``work`` may be called again after a serialisation failure, a deadlock or a changed table, which the server
        has rolled back; it talks to this database only (invariant 10).
        """

        async def whole(session: Session) -> _T:
            transaction = session.transaction()
            await transaction.start()
            try:
                result = await work(session)
            except BaseException:
                await self._roll_back(session, transaction)
                raise
            await transaction.commit()
            return result

        return await self._run(whole)

    # -- inside ------------------------------------------------------------------------------------------------------

    async def _run(self, work: Callable[[Session], Awaitable[_T]]) -> _T:
        for rerun in range(_RERUNS + 1):
            try:
                async with self._session() as session, asyncio.timeout(self.statement_timeout):
                    return await work(session)
            except OutboxdError as error:
                cause = error.__cause__
                if cause is None or not is_rerun_safe(cause) or rerun == _RERUNS:
                    raise
        raise AssertionError("unreachable: the last rerun raises")

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[Session]:
        pool = self._pool
        if pool is None:
            raise DatabaseUnreachable(f"connection `{self.name}` is closed")
        with translated(self.name):
            try:
                # A deadline of our own: pool.acquire's does not cover every wait of a connection being made.
                async with asyncio.timeout(self._connect_timeout):
                    session = await pool.acquire()
            except ValueError as error:  # parts of the DSN may stand in its text
                raise asyncpg.ClientConfigurationError(type(error).__name__) from None
            except BaseException as error:
                await self._suspect(pool, error)
                raise
            try:
                yield session
            except BaseException as error:
                if isinstance(error, asyncpg.InternalClientError):
                    _cut(session)  # its protocol is in no state to be used again
                await self._suspect(pool, error)
                raise
            finally:
                await self._release(pool, session)

    async def _roll_back(self, session: Session, transaction: Transaction) -> None:
        """Roll back within a moment; a connection that cannot even do that is cut, and the server rolls back alone."""
        try:
            async with asyncio.timeout(_LAST_WORD):
                await transaction.rollback()
        except (*_DRIVER_ERRORS, asyncio.CancelledError):
            # The error that led here is the one to tell; a second cancellation meets the next await.
            _cut(session)

    async def _release(self, pool: Pool, session: Session) -> None:
        """Give the connection back.

        asyncpg first asks the server to cancel a statement that was left in the middle; without an answer within a
        moment the connection is cut, so that neither the pool nor a shutdown waits for a silent server.
        """
        try:
            async with asyncio.timeout(2 * _LAST_WORD):
                await pool.release(session, timeout=_LAST_WORD)
        except _DRIVER_ERRORS:
            _cut(session)
        except asyncio.CancelledError:
            _cut(session)
            raise

    async def _suspect(self, pool: Pool, error: BaseException) -> None:
        """After a failover or a restart no older connection is to be trusted: they are closed as they come back."""
        if is_connection_lost(error):
            await pool.expire_connections()

    async def _prepare(self, connection: object) -> None:
        assert isinstance(connection, _PooledConnection)
        connection.keep_alive(self.statement_timeout)


def _cut(session: Session) -> None:
    with suppress(asyncpg.InterfaceError):  # it went back to the pool in the same moment
        session.terminate()

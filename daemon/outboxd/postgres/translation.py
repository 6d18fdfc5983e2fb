"""asyncpg's exceptions as errors of outboxd, most specific first; what a connection's failure means for its pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import asyncpg

from outboxd.errors import (
    DatabaseDenied,
    DatabaseError,
    DatabaseUnreachable,
    MoveRefused,
    OutboxdError,
    SchemaBehind,
    StatementFailed,
)

__all__ = ["is_connection_lost", "is_rerun_safe", "translate", "translated"]

_MOVE_REFUSED = "OXM01"  # raised by the trigger letter_guard

_DENIED = (
    asyncpg.InvalidAuthorizationSpecificationError,  # 28000, with 28P01 (password) below it
    asyncpg.InsufficientPrivilegeError,  # 42501
    asyncpg.InvalidCatalogNameError,  # 3D000: no such database
)
_OUTAGE = (
    asyncpg.PostgresConnectionError,  # class 08
    asyncpg.ReadOnlySQLTransactionError,  # 25006: an old primary, or a standby
    asyncpg.OperatorInterventionError,  # class 57P, and 57014 which is taken out before
    asyncpg.InsufficientResourcesError,  # class 53: too many connections, disk full, out of memory
    asyncpg.PostgresIOError,  # 58030
    asyncpg.IdleInTransactionSessionTimeoutError,  # 25P03
    OSError,  # refused, reset, unknown host, TLS; TimeoutError is one of them
)
_MISSING = (
    asyncpg.UndefinedTableError,
    asyncpg.UndefinedFunctionError,
    asyncpg.UndefinedColumnError,
    asyncpg.InvalidSchemaNameError,
)
_RERUN = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.InvalidCachedStatementError,  # the table changed under a prepared statement
    asyncpg.OutdatedSchemaCacheError,
)
_EXPIRES = (
    asyncpg.PostgresConnectionError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InternalClientError,  # the driver met the end of the session before it could see it as that
    OSError,  # a silent peer (TimeoutError) is rarely silent on one connection only
)
_MIGRATE = "Run `outboxd migrate -c PATH`."
_DSN_FORM = "Write postgresql://user:password@host:port/database; special characters in the password as %XX."

_REMEDIES: Final[Mapping[type[OutboxdError], str]] = {
    DatabaseUnreachable: "Check that the server runs, and the connection's host and port.",
    DatabaseDenied: "Check the connection's user, password and database, and the user's privileges.",
}

_Maker = Callable[[BaseException, str], OutboxdError]


def is_connection_lost(error: BaseException) -> bool:
    """True when every connection that was made before is suspect: the server went away, failed over or is read-only."""
    return isinstance(error, _EXPIRES)


def is_rerun_safe(error: BaseException) -> bool:
    """True when the server rolled the transaction back for a reason outside it: once more may succeed."""
    return isinstance(error, _RERUN)


def translate(error: BaseException, connection: str) -> OutboxdError:
    """The error of outboxd for what asyncpg raised; ``connection`` is the connection's name in the configuration.

    The DSN is never part of it (invariant 11).
    """
    if isinstance(error, OutboxdError):
        return error
    said = f"connection `{connection}`: {_text(error)}"
    for kinds, make in _KINDS:
        if isinstance(error, kinds):
            made = make(error, said)
            made.suggestion = made.suggestion or _REMEDIES.get(type(made))
            return made
    return DatabaseError(said)


@contextmanager
def translated(connection: str) -> Iterator[None]:
    """Raise the errors of outboxd for what asyncpg and the socket raise inside."""
    try:
        yield
    except OutboxdError:
        raise
    except asyncpg.ClientConfigurationError as error:
        raise translate(error, connection) from None
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise translate(error, connection) from error


def _postgres_error(error: BaseException, said: str) -> OutboxdError:
    if getattr(error, "sqlstate", None) == _MOVE_REFUSED:
        return MoveRefused(_text(error))
    return _failed(error, said)


def _missing(error: BaseException, said: str) -> OutboxdError:
    """A missing thing of the schema `outboxd` is ours to make; one of the application's is its statement's failure."""
    text = str(error)
    if 'schema "outboxd"' in text or "outboxd." in text:
        return SchemaBehind(said, suggestion=_MIGRATE)
    return _failed(error, said)


def _unusable(_error: BaseException, said: str) -> OutboxdError:
    # The driver's text may quote parts of the DSN (invariant 11).
    return DatabaseDenied(f"{said.partition(':')[0]}: its DSN or fields cannot be used", suggestion=_DSN_FORM)


def _interface_error(error: BaseException, said: str) -> OutboxdError:
    if isinstance(error, ValueError):  # an argument that does not fit its parameter: nothing was sent
        return _failed(error, said)
    return DatabaseUnreachable(said)  # the connection or the whole pool was closed under our hands


def _failed(error: BaseException, said: str) -> StatementFailed:
    return StatementFailed(
        said, sqlstate=getattr(error, "sqlstate", None) or None, suggestion=getattr(error, "hint", None)
    )


def _text(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "no answer within the deadline"
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


_KINDS: Final[Sequence[tuple[type[BaseException] | tuple[type[BaseException], ...], _Maker]]] = (
    (asyncpg.QueryCanceledError, _failed),  # statement_timeout of the role, or a person
    (_DENIED, lambda _, said: DatabaseDenied(said)),
    (_OUTAGE, lambda _, said: DatabaseUnreachable(said)),
    (_MISSING, _missing),
    (asyncpg.PostgresError, _postgres_error),
    (asyncpg.ClientConfigurationError, _unusable),
    (
        (asyncpg.UnsupportedClientFeatureError, asyncpg.UnsupportedServerFeatureError),
        lambda _, said: DatabaseError(said),
    ),
    (asyncpg.OutdatedSchemaCacheError, _failed),
    (asyncpg.InternalClientError, lambda _, said: DatabaseUnreachable(said)),  # ended by the server in this moment
    (asyncpg.InterfaceError, _interface_error),
)
"""Most specific first."""

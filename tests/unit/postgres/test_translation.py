"""Every exception of asyncpg has its place in outboxd's tree."""

from __future__ import annotations

import asyncpg
import pytest
from asyncpg import exceptions

from outboxd.errors import DatabaseDenied, DatabaseError, DatabaseUnreachable, OutboxdError, StatementFailed
from outboxd.postgres.translation import translate, translated

OUTAGES = ("08", "57", "53", "25006", "25P03", "58030")
DENIALS = ("28", "42501", "3D000")


def server_errors() -> list[type[asyncpg.PostgresError]]:
    found = [getattr(exceptions, name) for name in exceptions.__all__]
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, asyncpg.PostgresError)]


@pytest.mark.parametrize("kind", server_errors(), ids=lambda kind: kind.__name__)
def test_a_server_error_becomes_what_its_sqlstate_says(kind: type[asyncpg.PostgresError]) -> None:
    state = str(getattr(kind, "sqlstate", "") or "")
    error = translate(kind("said"), "shop")
    if state.startswith(OUTAGES) and state != "57014":  # a cancelled statement is its own failure
        assert type(error) is DatabaseUnreachable
    elif state.startswith(DENIALS):
        assert type(error) is DatabaseDenied
    else:
        assert isinstance(error, StatementFailed)
        assert error.sqlstate == (state or None)
    assert "shop" in str(error)


def client_errors() -> list[type[BaseException]]:
    found: list[type[BaseException]] = [exceptions.InterfaceError, exceptions.InternalClientError]
    for kind in found:
        found.extend(below for below in kind.__subclasses__() if below not in found)
    return [kind for kind in found if kind.__module__.startswith("asyncpg")]


@pytest.mark.parametrize("kind", client_errors(), ids=lambda kind: kind.__name__)
def test_an_error_of_the_driver_itself_is_translated_with_its_cause(kind: type[BaseException]) -> None:
    with pytest.raises(DatabaseError) as caught, translated("shop"):
        raise kind("said")
    assert isinstance(caught.value.__cause__, kind) or kind is exceptions.ClientConfigurationError


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError("no"), ConnectionResetError(), TimeoutError(), OSError("name or service not known")],
    ids=lambda error: type(error).__name__,
)
def test_a_failing_socket_is_an_outage(error: OSError) -> None:
    with pytest.raises(DatabaseUnreachable), translated("shop"):
        raise error


def test_errors_of_outboxd_and_of_the_caller_pass() -> None:
    with pytest.raises(OutboxdError, match="mine"), translated("shop"):
        raise OutboxdError("mine")
    with pytest.raises(ZeroDivisionError), translated("shop"):
        raise ZeroDivisionError


def test_a_broken_dsn_is_not_quoted() -> None:
    with pytest.raises(DatabaseDenied) as caught, translated("shop"):
        raise exceptions.ClientConfigurationError("invalid DSN: postgresql://u:secret@h")
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__

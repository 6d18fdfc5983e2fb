"""Settings of a Postgres connection: the YAML's `connections.*` with `type: postgres`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from outboxd.api.settings import PluginSettings, PositiveDuration, SecretStr

__all__ = ["PostgresSettings"]


_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]*\]|[^:\[\]]*)(:\d{1,5})?")


def _dsn(value: SecretStr) -> SecretStr:
    """Refuse what the driver could not use. Never with a piece of the value: it may hold a password."""
    dsn = value.get_secret_value()
    if not dsn.startswith(("postgres://", "postgresql://")):
        raise ValueError("a DSN starts with postgresql://")
    place, _, query = dsn.partition("://")[2].partition("?")
    netloc = place.partition("/")[0]
    user, _, hosts = netloc.rpartition("@")
    if "#" in dsn or "@" in user or "@" in place.partition("/")[2]:
        raise ValueError(
            "special characters in the user or password of a DSN are written as %XX: @ is %40, / is %2F, # is %23"
        )
    if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        raise ValueError("the address of a DSN is host:port, the port a number")
    for option in query.split("&"):
        name, _, mode = option.partition("=")
        if name == "sslmode" and mode not in _SSL_MODES:
            raise ValueError(f"sslmode is one of {', '.join(_SSL_MODES)}")
    return value


class PostgresSettings(PluginSettings):
    """A Postgres database: by `dsn`, or by `host`, `port`, `database`, `user` and `password`."""

    type: Literal["postgres"]
    """What the connection is."""
    dsn: Annotated[SecretStr, AfterValidator(_dsn)] | None = None
    """`postgresql://user:password@host:port/database?sslmode=...`; take it from `${env:NAME}` or `${file:/path}`."""
    host: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Host name, address, or the directory of a Unix socket."""
    port: Annotated[int, Field(ge=1, le=65535)] = 5432
    """Port of the server."""
    database: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Name of the database."""
    user: Annotated[str, StringConstraints(min_length=1)] | None = None
    """Name of the role."""
    password: SecretStr | None = None
    """Password of the role; take it from `${env:NAME}` or `${file:/path}`."""
    pool_max_size: Annotated[int, Field(ge=1, le=1000)] | None = None
    """The most connections that are open at once; default: what the pipelines that use it need."""
    statement_timeout: PositiveDuration = timedelta(seconds=30)
    """How long one statement may run."""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        fields = [name for name in ("host", "port", "database", "user", "password") if name in self.model_fields_set]
        if self.dsn is not None and fields:
            raise PydanticCustomError(
                "contradiction", "dsn and {names} exclude each other", {"names": ", ".join(fields)}
            )
        missing = [name for name in ("host", "database", "user") if getattr(self, name) is None]
        if self.dsn is None and missing:
            raise PydanticCustomError(
                "incomplete", "needs dsn, or host, database and user; missing: {names}", {"names": ", ".join(missing)}
            )
        return self

"""Turns a Kafka connection's settings into the arguments of aiokafka's clients."""

from __future__ import annotations

import random
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from pydantic import SecretStr

from outboxd.errors import ConfigurationError

__all__ = ["ClientOptions", "ConnectionSettings", "SecuritySettings", "security_arguments"]

_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class SecuritySettings(Protocol):
    """The section `security` of a Kafka connection."""

    @property
    def protocol(self) -> str:
        """PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."""
        ...

    @property
    def mechanism(self) -> str | None:
        """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
        ...

    @property
    def username(self) -> str | None:
        """The SASL user."""
        ...

    @property
    def password(self) -> SecretStr | None:
        """The SASL password."""
        ...

    @property
    def ca_file(self) -> object:
        """A path of PEM certificates to trust, instead of the system's; None for those."""
        ...

    @property
    def cert_file(self) -> object:
        """A path of this client's certificate."""
        ...

    @property
    def key_file(self) -> object:
        """A path of this client's private key."""
        ...


class ConnectionSettings(Protocol):
    """A connection of type `kafka`."""

    @property
    def bootstrap_servers(self) -> Sequence[str]:
        """``host:port`` each."""
        ...

    @property
    def security(self) -> SecuritySettings:
        """How to talk to them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """What every client of one connection has in common.

    ``request_timeout`` stays above the brokers' `broker.session.timeout.ms` (9 s by default): a shorter one reports
    batches as failed that are in the log. ``connect_deadline`` bounds the first contact, ``answer_deadline`` each
    question (a topic, an offset), ``close_deadline`` an orderly end.
    """

    bootstrap_servers: tuple[str, ...]
    client_id: str = "outboxd"
    security: Mapping[str, object] = field(default_factory=dict)
    request_timeout: timedelta = timedelta(seconds=30)
    metadata_max_age: timedelta = timedelta(seconds=30)
    connect_deadline: timedelta = timedelta(seconds=15)
    answer_deadline: timedelta = timedelta(seconds=10)
    close_deadline: timedelta = timedelta(seconds=5)

    @classmethod
    def of(cls, settings: ConnectionSettings, *, client_id: str = "outboxd") -> ClientOptions:
        """The options for a connection's settings. Raises ConfigurationError."""
        return cls(
            bootstrap_servers=tuple(settings.bootstrap_servers),
            client_id=client_id,
            security=security_arguments(settings.security),
        )

    def arguments(self) -> dict[str, object]:
        """Keyword arguments for a client, producer or consumer of aiokafka.

        The servers come in random order: the first one may be frozen, and a later attempt should meet another.
        """
        servers = random.sample(self.bootstrap_servers, len(self.bootstrap_servers))
        return {
            "bootstrap_servers": servers,
            "client_id": self.client_id,
            "request_timeout_ms": _milliseconds(self.request_timeout),
            "metadata_max_age_ms": _milliseconds(self.metadata_max_age),
            **self.security,
        }


def security_arguments(settings: SecuritySettings) -> dict[str, object]:
    """Keyword arguments of aiokafka for the section `security`. Raises ConfigurationError, saying which key is wrong."""
    protocol = settings.protocol
    if protocol not in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"):
        raise ConfigurationError(
            f"security.protocol {protocol!r} is unknown", suggestion="Use PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL."
        )
    arguments: dict[str, object] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        arguments["ssl_context"] = _ssl_context(settings)
    if protocol.startswith("SASL"):
        arguments |= _sasl(settings)
    return arguments


def _sasl(settings: SecuritySettings) -> dict[str, object]:
    mechanism = settings.mechanism or "PLAIN"
    if mechanism not in _MECHANISMS:
        raise ConfigurationError(
            f"security.mechanism {mechanism!r} is not supported", suggestion=f"Use one of {', '.join(_MECHANISMS)}."
        )
    if not settings.username or settings.password is None:
        raise ConfigurationError(
            f"security.protocol {settings.protocol} needs security.username and security.password",
            suggestion="Give both, the password as ${env:...} or a secret file.",
        )
    return {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": settings.username,
        "sasl_plain_password": settings.password.get_secret_value(),
    }


def _ssl_context(settings: SecuritySettings) -> ssl.SSLContext:
    if settings.key_file is not None and settings.cert_file is None:
        raise ConfigurationError(
            "security.key_file is given without security.cert_file", suggestion="Give both, or neither."
        )
    try:
        context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"security.ca_file {settings.ca_file} cannot be used: {error}",
            suggestion="Give a readable file of PEM certificates.",
        ) from error
    if settings.cert_file is not None:
        key_file = None if settings.key_file is None else str(settings.key_file)
        try:
            context.load_cert_chain(str(settings.cert_file), key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"security.cert_file {settings.cert_file} cannot be used: {error}",
                suggestion="Give readable PEM files that belong together; the key must not need a passphrase.",
            ) from error
    return context


def _milliseconds(duration: timedelta) -> int:
    return int(duration / timedelta(milliseconds=1))

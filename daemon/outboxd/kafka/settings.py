"""Settings of a Kafka connection: the YAML's `connections.*` with `type: kafka`."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from outboxd.api.annotations import AlsoWrittenAs
from outboxd.api.settings import PluginSettings, SecretStr

__all__ = ["KafkaSettings", "SecuritySettings", "TopicName"]

_ADDRESS: Final = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^\s:,/\[\]]+):(\d{1,5})$")

TopicName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
"""A topic's name: up to 249 letters, digits, dots, underscores and hyphens, as Kafka has it."""


def _addresses(value: object) -> object:
    """One text or a list; a comma separates addresses, so that one variable can carry several."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        return value
    return tuple(part.strip() for item in items for part in item.split(","))


def _address(value: str) -> str:
    match = _ADDRESS.match(value)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError('an address is host:port, such as "kafka-0.kafka:9092"')
    return value


class SecuritySettings(PluginSettings):
    """Encryption and authentication towards the brokers."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """`SSL` encrypts, `SASL_` authenticates with user name and password."""
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """The SASL mechanism; with `SASL_PLAINTEXT` and `SASL_SSL`."""
    username: str | None = None
    """The SASL user name."""
    password: SecretStr | None = None
    """The SASL password; take it from `${env:NAME}` or `${file:/path}`."""
    ca_file: str | None = None
    """A PEM file with the certificates that are trusted; default: the system's."""
    cert_file: str | None = None
    """A PEM file with the client's certificate; with `key_file`."""
    key_file: str | None = None
    """A PEM file with the client's private key; with `cert_file`."""

    @model_validator(mode="after")
    def _fits_the_protocol(self) -> Self:
        sasl = {name: getattr(self, name) for name in ("mechanism", "username", "password")}
        tls = {name: getattr(self, name) for name in ("ca_file", "cert_file", "key_file")}
        if self.protocol.startswith("SASL"):
            self._require(sasl, present=True)
        else:
            self._require(sasl, present=False)
        if not self.protocol.endswith("SSL"):
            self._require(tls, present=False)
        if (self.cert_file is None) != (self.key_file is None):
            raise PydanticCustomError("incomplete", "cert_file and key_file belong together")
        return self

    def _require(self, values: dict[str, object], *, present: bool) -> None:
        wrong = [name for name, value in values.items() if (value is not None) != present]
        if wrong:
            names, protocol = ", ".join(wrong), self.protocol
            if present:
                raise PydanticCustomError(
                    "incomplete", "protocol {protocol} needs {names}", {"protocol": protocol, "names": names}
                )
            raise PydanticCustomError(
                "contradiction", "protocol {protocol} does not use {names}", {"protocol": protocol, "names": names}
            )


class KafkaSettings(PluginSettings):
    """A Kafka cluster that pipelines read from or publish to."""

    type: Literal["kafka"]
    """What the connection is."""
    bootstrap_servers: Annotated[
        tuple[Annotated[str, BeforeValidator(_address)], ...],
        Field(min_length=1, strict=False),
        BeforeValidator(_addresses),
        AlsoWrittenAs("item"),
    ]
    """Addresses `host:port` to start from; a list, or one text with commas."""
    security: SecuritySettings = SecuritySettings()
    """Encryption and authentication."""

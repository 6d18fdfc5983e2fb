"""The secrets of a configuration, for the redactor of the logs (invariant 11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

from outboxd.api.references import PluginReference
from outboxd.config import Configuration

__all__ = ["secrets_of"]


def secrets_of(configuration: Configuration) -> frozenset[str]:
    """Every secret field's value, and the password inside every DSN."""
    found = {
        secret
        for part in (*configuration.connections.values(), *configuration.pipelines.values(), configuration.http)
        for secret in _walk(part)
    }
    return frozenset(found | {password for secret in found for password in _passwords(secret)}) - {""}


def _walk(value: object) -> Iterator[str]:
    match value:
        case SecretStr():
            yield value.get_secret_value()
        case PluginReference():
            yield from _walk(value.settings)
        case BaseModel():
            for name in type(value).model_fields:
                yield from _walk(getattr(value, name))
        case Mapping():
            for item in value.values():
                yield from _walk(item)
        case list() | tuple():
            for item in value:
                yield from _walk(item)
        case _:
            return


def _passwords(dsn: str) -> Iterator[str]:
    """The password of a DSN as it is written and as it is meant."""
    if "://" not in dsn:
        return
    try:
        password = urlsplit(dsn).password
    except ValueError:
        return
    if password:
        yield password
        yield unquote(password)

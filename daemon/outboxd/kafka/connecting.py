"""The first contact with the cluster, and the diagnosis when it fails.

aiokafka says only "unable to bootstrap"; whether it was the password, the certificate or the network stands in its log.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any, Final

import aiokafka.errors as kafka

from outboxd.errors import BrokerDenied, BrokerError, BrokerUnreachable
from outboxd.kafka.bounded import call
from outboxd.kafka.library_logs import captured_errors
from outboxd.kafka.security import ClientOptions
from outboxd.kafka.translation import MEANING

__all__ = ["connect", "diagnose"]

_TLS_REMEDY: Final = "Check security.protocol, security.ca_file and that the certificate names the host."
_LOGIN_REMEDY: Final = "Check security.mechanism, security.username and security.password."


async def connect(client: Any, options: ClientOptions) -> None:
    """Bootstrap aiokafka's client. Raises BrokerDenied for a refused login or certificate, else BrokerUnreachable."""
    servers = ", ".join(options.bootstrap_servers)
    with captured_errors() as causes:
        try:
            await call(
                client.bootstrap(), seconds=options.connect_deadline.total_seconds(), doing=f"connect to {servers}"
            )
        except BrokerUnreachable as error:
            raise diagnose(error, causes, servers=servers) from error


def diagnose(error: BrokerUnreachable, causes: Sequence[BaseException], *, servers: str) -> BrokerError:
    """The reason behind a failed first contact, from the exceptions that the client logged meanwhile."""
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            return BrokerDenied(f"TLS with {servers} failed: {cause}", suggestion=_TLS_REMEDY)
        if isinstance(cause, kafka.KafkaError) and MEANING.get(type(cause)) is BrokerDenied:
            return BrokerDenied(f"{servers} refused the login: {cause}", suggestion=_LOGIN_REMEDY)
    if causes:
        detail = str(causes[-1]) or type(causes[-1]).__name__
        return BrokerUnreachable(
            f"could not connect to {servers}: {detail}",
            suggestion="Check bootstrap_servers, and that security.protocol is the listener's.",
        )
    return error

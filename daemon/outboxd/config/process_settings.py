"""Settings of the process itself: the YAML's `daemon` and `http`; `telemetry` stands beside its component."""

from __future__ import annotations

import ipaddress
from datetime import timedelta
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from outboxd.api.annotations import Later
from outboxd.api.settings import PluginSettings, PositiveDuration, PostgresConnectionName

__all__ = ["DaemonSettings", "HttpSettings", "ManagementSettings"]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$")]
"""A name that is safe in logs, metrics, files and group memberships."""


class DaemonSettings(PluginSettings):
    """The daemon as a whole."""

    name: Name = "outboxd"
    """For people: in logs, metrics and as the owner of leases, with a random suffix at each start."""
    instance_id: Name | None = None
    """A stable name that no other replica has: makes group membership static. In Kubernetes the name of the pod."""
    state: PostgresConnectionName | None = None
    """A Postgres connection where pause, stop and start are kept for all replicas; default: a local file, for this
    replica only."""
    drain_timeout: PositiveDuration = timedelta(seconds=25)
    """How long SIGTERM waits for what is in hand."""
    reload: Literal["watch", "off"] = "watch"
    """`watch`: a changed configuration is read and checked whole, then only the pipelines that changed restart; what is
    set under `daemon`, `http` and `telemetry` needs a restart. `off`: nothing is read again."""


def _loopback(host: str) -> str:
    try:
        is_loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = False
    if not is_loopback:
        raise PydanticCustomError(
            "host_not_loopback",
            "must be loopback: without tokens the API would be open to everybody who can reach it",
        )
    return host


class ManagementSettings(PluginSettings):
    """A second address for `/healthz` and `/metrics` only. It needs no token: it shows no payload and changes nothing."""

    host: str = "0.0.0.0"  # noqa: S104  # what it is for: kubelet and Prometheus ask from outside
    """The address to listen on; `::` for IPv6 too."""
    port: Annotated[int, Field(ge=0, le=65535)]
    """The port to listen on; 0 takes a free one."""


class HttpSettings(PluginSettings):
    """Where the REST API, the probes and the metrics answer."""

    host: Annotated[str, AfterValidator(_loopback)] = "127.0.0.1"
    """The address to listen on. Without tokens only loopback is allowed."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8083
    """The port to listen on; 0 takes a free one."""
    tokens_file: Annotated[str | None, Later()] = None
    """A file with bearer tokens and their roles."""
    management: ManagementSettings | None = None
    """Probes and metrics for other computers, on a port of their own; without it they answer on loopback only."""

    @model_validator(mode="after")
    def _ports_differ(self) -> HttpSettings:
        if self.management is not None and self.management.port == self.port != 0:
            raise PydanticCustomError("contradiction", "http.port and http.management.port are the same")
        return self

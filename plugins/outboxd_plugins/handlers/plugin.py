"""Registers the first-party handlers."""

from __future__ import annotations

from collections.abc import Mapping

from outboxd.api import hookimpl
from outboxd_plugins.handlers.forward import ForwardHandler
from outboxd_plugins.handlers.log import LogHandler
from outboxd_plugins.handlers.python import PythonHandler

__all__ = ["outboxd_register_handlers"]


@hookimpl
def outboxd_register_handlers() -> Mapping[str, type]:
    """Handlers `python`, `log`, `forward`."""
    return {"python": PythonHandler, "log": LogHandler, "forward": ForwardHandler}

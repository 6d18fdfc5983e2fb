"""Registers the first-party actions."""

from __future__ import annotations

from collections.abc import Mapping

from outboxd.api import hookimpl
from outboxd_plugins.actions.python import PythonAction
from outboxd_plugins.actions.sql import SqlAction

__all__ = ["outboxd_register_actions"]


@hookimpl
def outboxd_register_actions() -> Mapping[str, type]:
    """Actions `python`, `sql`."""
    return {"python": PythonAction, "sql": SqlAction}

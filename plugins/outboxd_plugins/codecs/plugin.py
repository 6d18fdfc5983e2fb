"""Registers the first-party codecs."""

from __future__ import annotations

from collections.abc import Mapping

from outboxd.api import hookimpl
from outboxd_plugins.codecs.json import JsonCodec
from outboxd_plugins.codecs.raw import RawCodec
from outboxd_plugins.codecs.text import TextCodec

__all__ = ["outboxd_register_codecs"]


@hookimpl
def outboxd_register_codecs() -> Mapping[str, type]:
    """Codecs `raw`, `json`, `text`."""
    return {"raw": RawCodec, "json": JsonCodec, "text": TextCodec}

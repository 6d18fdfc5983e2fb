"""Codec `json`: JSON as the standard library reads it, integers exact."""

from __future__ import annotations

import json

from outboxd.api import RawRecord, StatelessPlugin
from outboxd.errors import Undecodable

__all__ = ["JsonCodec"]


class JsonCodec(StatelessPlugin):
    """The value is what the JSON text says, or None for a tombstone (and for the text `null`)."""

    def decode(self, raw: bytes | None, record: RawRecord) -> object:  # noqa: ARG002  # the protocol's signature
        """The value. Raises Undecodable, also for nesting that is too deep and for numbers that are too long."""
        if raw is None:
            return None
        try:
            return json.loads(raw)
        except (ValueError, RecursionError) as error:
            # The message of a JSONDecodeError holds a position, never the text itself.
            raise Undecodable(f"the value is not JSON: {error}") from error

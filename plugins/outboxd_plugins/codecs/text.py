"""Codec `text`: UTF-8."""

from __future__ import annotations

from outboxd.api import RawRecord, StatelessPlugin
from outboxd.errors import Undecodable

__all__ = ["TextCodec"]


class TextCodec(StatelessPlugin):
    """The value is a str, or None for a tombstone."""

    def decode(self, raw: bytes | None, record: RawRecord) -> str | None:  # noqa: ARG002  # the protocol's signature
        """The text. Raises Undecodable."""
        if raw is None:
            return None
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise Undecodable(f"the value is not UTF-8: byte {error.start} of {len(raw)}: {error.reason}") from error

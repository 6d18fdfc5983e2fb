"""Codec `raw`: the bytes as they are."""

from __future__ import annotations

from outboxd.api import RawRecord, StatelessPlugin

__all__ = ["RawCodec"]


class RawCodec(StatelessPlugin):
    """The value is the bytes, or None."""

    def decode(self, raw: bytes | None, record: RawRecord) -> bytes | None:  # noqa: ARG002  # the protocol's signature
        """The bytes themselves."""
        return raw

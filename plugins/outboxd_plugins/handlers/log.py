"""Handler `log`: writes one log line per record; for trying a pipeline out."""

from __future__ import annotations

from typing import ClassVar, Literal

from outboxd.api import HandlerContext, PluginContext, PluginSettings, Record, StatelessPlugin

__all__ = ["LogHandler", "LogHandlerSettings"]


class LogHandlerSettings(PluginSettings):
    """Settings of handler `log`."""

    level: Literal["debug", "info", "warning"] = "info"
    """The level of the line."""
    payload: bool = False
    """Whether key and value are in the line. Off by default: payloads may hold what must not be in a log."""
    limit: int = 200
    """With `payload`, how many characters of key and value are shown."""


class LogHandler(StatelessPlugin):
    """Logs `record_received` with the record's coordinates."""

    Settings: ClassVar[type[PluginSettings]] = LogHandlerSettings

    def __init__(self, settings: LogHandlerSettings, context: PluginContext) -> None:
        super().__init__(settings, context)
        self._limit = settings.limit
        self._shows_payload = settings.payload
        self._write = getattr(context.logger, settings.level)

    async def handle(self, record: Record, context: HandlerContext) -> None:
        """Write the line."""
        fields: dict[str, object] = {
            "pipeline": context.pipeline,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "attempt": record.attempt,
        }
        if self._shows_payload:
            fields |= {"key": self._shown(record.key), "value": self._shown(record.raw_value)}
        self._write("record_received", **fields)

    def _shown(self, raw: bytes | None) -> str | None:
        if raw is None:
            return None
        text = raw[: 4 * self._limit].decode("utf-8", "backslashreplace")
        return text if len(text) <= self._limit else text[: self._limit] + "…"

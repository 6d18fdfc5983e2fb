"""Structured logs: one line per event on stdout, for people or as JSON, with the trace's ids and without secrets.

Libraries' own log records take the same way, each message at most a few times per window: a client that cannot reach
its broker writes dozens of lines a second, and ours already says it once.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, MutableMapping
from typing import Any, Final, Literal, TextIO

import structlog
from opentelemetry import trace
from structlog.typing import EventDict, Processor

from outboxd.api.context import Logger
from outboxd.telemetry.redaction import Redactor

__all__ = ["LibraryRateLimit", "configure_logs", "get_logger", "set_redactor"]

Format = Literal["console", "json"]
Level = Literal["debug", "info", "warning", "error"]

_OURS: Final = "outboxd"
_QUIET: Final = {"asyncio": logging.WARNING, "uvicorn.access": logging.WARNING, "uvicorn.error": logging.WARNING}
_BURST: Final = 5
_WINDOW: Final = 60.0
_KNOWN_MESSAGES: Final = 500


class _Redaction:
    """The redactor in force: set again once the configuration with its secrets has been read."""

    def __init__(self) -> None:
        self.redactor = Redactor()

    def __call__(self, _logger: Any, _method: str, event: EventDict) -> EventDict:
        return {key: self.redactor.value(value, key) for key, value in event.items()}


_redaction: Final = _Redaction()


def configure_logs(*, format: Format, level: Level, stream: TextIO | None = None) -> None:  # noqa: A002  # its name in the YAML
    """Set the process's logging up; may be called again. Handlers that others put on the root logger stay."""
    stream = stream or sys.stdout
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace_ids,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    rendering: list[Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if format == "json":
        rendering += [structlog.processors.format_exc_info, _redaction, structlog.processors.JSONRenderer(default=str)]
    else:
        rendering += [
            structlog.processors.format_exc_info,
            _redaction,
            structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback),
        ]
    handler = _OurHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name], processors=rendering
        )
    )
    handler.addFilter(LibraryRateLimit())
    root = logging.getLogger()
    for old in [each for each in root.handlers if isinstance(each, _OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(_OURS).setLevel(level.upper())
    for name, quiet in _QUIET.items():
        logging.getLogger(name).setLevel(quiet)
    logging.captureWarnings(capture=True)


def set_redactor(redactor: Redactor) -> None:
    """Take these secrets out of every line from now on."""
    _redaction.redactor = redactor


def get_logger(**fields: object) -> Logger:
    """A logger whose every line carries ``fields``."""
    logger: Logger = structlog.stdlib.get_logger(_OURS).bind(**fields)
    return logger


class LibraryRateLimit(logging.Filter):
    """Lets a library's message through five times a minute, and then says how many it held back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: MutableMapping[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written. Ours always are."""
        if record.name == _OURS or record.name.startswith(f"{_OURS}."):
            return True
        # By template and place: the arguments (addresses, correlation ids) differ from line to line.
        key = (record.name, record.lineno, str(record.msg)[:200])
        now = self._clock()
        began, count = self._seen.get(key, (now, 0))
        if now - began >= _WINDOW:
            if count > _BURST:
                record.msg = f"{record.msg} [{count - _BURST} more in the last {_WINDOW:.0f} s]"
            began, count = now, 0
        if len(self._seen) >= _KNOWN_MESSAGES and key not in self._seen:
            self._seen.clear()
        self._seen[key] = (began, count + 1)
        return count < _BURST


class _OurHandler(logging.StreamHandler[TextIO]):
    """Tells our handler from those of whoever embeds us."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """A closed pipe or full disk on stdout must not be felt by the data path."""
        del record


def _add_trace_ids(_logger: Any, _method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event

"""The texts of an error that a letter keeps: printable, without secrets, and within their caps."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import re
import traceback
from pathlib import Path
from typing import Final

import outboxd
from outboxd.errors import OutboxdError
from outboxd.pipeline.letters.causes import class_name, message_of

__all__ = [
    "MESSAGE_BYTES",
    "TRACEBACK_BYTES",
    "describe",
    "error_message",
    "error_traceback",
    "mask_secrets",
    "safe_text",
]

MESSAGE_BYTES: Final = 8 * 1024
"""The cap of a letter's error message, in bytes of UTF-8."""
TRACEBACK_BYTES: Final = 32 * 1024
"""The cap of a letter's traceback, in bytes of UTF-8."""

_MASK: Final = "***"
_CUT: Final = "... (cut) ..."
_MOST_FRAMES: Final = 100
_MOST_CHARACTERS: Final = 4 * TRACEBACK_BYTES
_MACHINERY: Final = tuple(
    f"{Path(str(module.__file__)).parent}{os.sep}" for module in (outboxd, asyncio, concurrent.futures)
)
_PLUGINS: Final = f"{os.sep}outboxd_plugins{os.sep}"

# Both begin with something rare and are bounded: an error's text may be long and hostile, and the event loop waits.
_URL_CREDENTIALS: Final = re.compile(r"(?<=://)([^\s:/@'\"]{0,128}:)[^\s'\"]{1,256}(?=@)")
_NAMED_SECRET: Final = re.compile(
    r"""(?ix)
    ( (?: password | passwd | passphrase | pwd | secret | api[_-]?key | access[_-]?key | token ) [\w.-]{0,40}
      ['"]? \s{0,4} (?: = | : ) >? \s{0,4} )
    (?: b?'(?:[^'\\]|\\.){0,1024}' | b?"(?:[^"\\]|\\.){0,1024}" | [^\s'",;&)}\]]{1,1024} )
    """
)
_AUTHORIZATION: Final = re.compile(r"(?i)\b((?:bearer|basic)\s{1,4})[\w.~+/=-]{6,4096}")


def safe_text(text: str, limit: int) -> str:
    """Text that any store takes: NUL and lone surrogates as visible escapes, at most ``limit`` bytes of UTF-8."""
    printable = text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
    return _cut(printable, limit, keep_head=limit)


def mask_secrets(text: str) -> str:
    """The text with passwords in URLs and in `password=...`-like pairs, and authorisation headers, masked."""
    text = _URL_CREDENTIALS.sub(rf"\g<1>{_MASK}", text)
    text = _NAMED_SECRET.sub(rf"\g<1>{_MASK}", text)
    return _AUTHORIZATION.sub(rf"\g<1>{_MASK}", text)


def describe(error: BaseException) -> str:
    """Class and message on one line, safe to show; an error of outboxd without its class."""
    message = error_message(error)
    if isinstance(error, OutboxdError) and message:
        return message
    return f"{class_name(type(error))}: {message}" if message else class_name(type(error))


def error_message(error: BaseException) -> str:
    """The error's message on one line, safe to keep."""
    line = mask_secrets(message_of(error)[: 4 * MESSAGE_BYTES]).replace("\r", "\\r").replace("\n", "\\n")
    return safe_text(line, MESSAGE_BYTES)


def error_traceback(error: BaseException) -> str:
    """The error's traceback with its causes, less the frames of outboxd that led to the handler, safe to keep."""
    text = mask_secrets(_cut(_format(error), _MOST_CHARACTERS, keep_head=_MOST_CHARACTERS // 4))
    return _cut(safe_text(text, 8 * _MOST_CHARACTERS), TRACEBACK_BYTES, keep_head=TRACEBACK_BYTES // 4)


def _format(error: BaseException) -> str:
    try:
        formatted = traceback.TracebackException.from_exception(error, limit=-_MOST_FRAMES, compact=True)
        _trim(formatted)
        return "".join(formatted.format())
    except Exception as broken:  # noqa: BLE001 - formatting runs code of the error; a letter is written all the same
        return f"{class_name(type(error))}: <no traceback: formatting it raised {class_name(type(broken))}>\n"


def _trim(formatted: traceback.TracebackException) -> None:
    waiting: list[traceback.TracebackException | None] = [formatted]
    while waiting:
        current = waiting.pop()
        if current is None:
            continue
        _trim_stack(current.stack)
        waiting += [current.__cause__, current.__context__, *(current.exceptions or ())]


def _trim_stack(stack: traceback.StackSummary) -> None:
    ours = 0
    while ours < len(stack) and _is_machinery(stack[ours].filename):
        ours += 1
    if ours < len(stack):  # an error of outboxd itself, such as HandlerTimeout, keeps its frames
        del stack[:ours]


def _is_machinery(filename: str) -> bool:
    return filename.startswith(_MACHINERY) or _PLUGINS in filename


def _cut(text: str, limit: int, *, keep_head: int) -> str:
    """At most ``limit`` bytes: up to ``keep_head`` of the start and, with what is left, the end."""
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= limit:
        return text
    head = raw[: max(0, min(keep_head, limit) - len(_CUT))].decode("utf-8", "ignore")
    left = limit - len(head.encode()) - len(_CUT)
    tail = raw[-left:].decode("utf-8", "ignore") if keep_head < limit else ""
    return head + _CUT + tail

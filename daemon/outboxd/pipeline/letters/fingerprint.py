"""What groups letters of one cause: handler, root class and the frames where it was raised; never the message's text."""

from __future__ import annotations

import hashlib
import re
import traceback
from collections.abc import Iterator, Sequence
from typing import Final

from outboxd.pipeline.letters.causes import chain_of, class_name, root_of

__all__ = ["fingerprint"]

_FRAMES: Final = 5
_OURS: Final = frozenset({"outboxd", "outboxd_plugins"})
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]+")


def fingerprint(handler: str, error: BaseException) -> str:
    """32 hex digits, equal for failures of one handler with one root class raised at one place.

    A place is module and qualified name of the innermost frames: no line number, no file, no address, so that a
    release that moves lines, another machine or another process gives the same.
    """
    root = root_of(error)
    frames = _frames(root) or next((frames for cause in chain_of(error) if (frames := _frames(cause))), [])
    parts = [handler, class_name(type(root)), *frames]
    return hashlib.blake2b("\n".join(parts).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def _frames(error: BaseException) -> Sequence[str]:
    # Each place once: how deep a recursion went does not make another cause.
    return list(dict.fromkeys(_places(error)))[-_FRAMES:]


def _places(error: BaseException) -> Iterator[str]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _OURS:
            yield _ADDRESS.sub("0x", f"{module}.{frame.f_code.co_qualname}")

"""The end of a server's log, for the error that says why the server does not do what it should."""

from __future__ import annotations

from pathlib import Path

__all__ = ["log_tail"]


def log_tail(log: Path, lines: int = 20) -> str:
    """The last ``lines`` of a server's log, indented, with the log's path; says so when there is nothing in it."""
    try:
        # A server that repeats itself writes megabytes; the end is enough.
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 64 * 1024))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return f"{log} was never written"
    tail = "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
    return f"{log} ends with:\n{tail}" if tail else f"{log} is empty"

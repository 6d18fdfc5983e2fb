"""Runs a server's own command-line programs (format, initdb, psql) with a deadline and readable errors."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from outboxd.errors import DevServerFailed

__all__ = ["BARE_ENVIRONMENT", "run_tool"]

# A server sees nothing of our environment: no PG* or JAVA_* variable of the person changes it, no secret leaks into it.
BARE_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

_DEADLINE = 60  # seconds


async def run_tool(
    argv: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
    group: int | None = None,
) -> str:
    """Run a program in ``folder`` and return what it prints, without the last line's end.

    Raises DevServerFailed with the program's own words when it fails or takes longer than a minute.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=BARE_ENVIRONMENT | dict(environment or {}),
        user=user,
        group=group,
        extra_groups=[] if user is not None else None,
    )
    name = Path(argv[0]).name
    try:
        async with asyncio.timeout(_DEADLINE):
            output, errors = await process.communicate()
    except TimeoutError:
        raise DevServerFailed(f"{name} did not end within {_DEADLINE} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        words = (errors or output).decode(errors="replace").strip()
        raise DevServerFailed(f"{name} failed with status {process.returncode}: {words}")
    return output.decode(errors="replace").rstrip("\n")

"""The end of the process where a thread would hold it up."""

from __future__ import annotations

import logging
import os
import sys
import threading

__all__ = ["end_stuck_process"]


def end_stuck_process(code: int) -> None:
    """End at once with this exit code when a thread is left that Python would wait for; else return.

    A handler that never returns would keep the process until it is killed. Everything that had to be closed has been
    closed by then.
    """
    if all(each is threading.current_thread() or each.daemon for each in threading.enumerate()):
        return
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue
    os._exit(code)

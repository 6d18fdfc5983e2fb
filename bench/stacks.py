"""Sampled stacks of the daemon, sorted into what it was doing, as microseconds for each row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["CONSUMER", "RELAY", "Profile", "read_stacks"]

Groups = Sequence[tuple[str, str]]
"""Names with what a frame of the stack looks like, the most telling first: the first that any frame matches takes it."""

_COLLECTION = ("garbage collection", r"gc_collect_main")
_TELEMETRY = ("telemetry", r"outboxd/telemetry/|opentelemetry/|metrics/_internal/|prometheus")
_LOOP = ("event loop, sockets", r"loop\.c|linux\.c|stream\.c|asyncio/|_asynciomodule|outboxd/runtime/loop\.py")
_DATABASE = r"asyncpg/|protocol\.c|pgproto\.c|recordobj\.c"

RELAY: Groups = (
    _COLLECTION,
    _TELEMETRY,
    (
        "build records and batches",
        r"outboxd/kafka/batch\.py|default_records|message_accumulator|record_maker|make_record",
    ),
    ("mark", r"relay/marking\.py|OutboxStore\.mark|_mark_arguments"),
    ("fetch and decode", rf"postgres/outbox_store\.py|{_DATABASE}"),
    ("send", r"aiokafka/|outboxd/kafka/"),
    ("shards, lanes, bookkeeping", r"pipeline/relay/"),
    _LOOP,
)
CONSUMER: Groups = (
    _COLLECTION,
    _TELEMETRY,
    ("the handler itself", r"bench/handlers\.py|bench/tally\.py"),
    ("settle and commit", r"consumer/settlement\.py|consumer/progress\.py|consumer/committing\.py"),
    (
        "attempt: decode, call, classify",
        r"consumer/attempt\.py|consumer/processing\.py|consumer/tracing\.py|runtime/stages",
    ),
    ("lanes and workers", r"consumer/workers\.py|consumer/lanes\.py|consumer/timers\.py"),
    ("convert records", r"kafka/conversion\.py"),
    ("fetch and decode", r"aiokafka/|default_records|outboxd/kafka/"),
    ("poll and hand over", r"pipeline/consumer/"),
    _LOOP,
)

_START = re.compile(r"importlib|_find_and_load")
_WAITING = re.compile(r"epoll|uv__io_poll|select\.poll|select \(")
_LINE = re.compile(r":\d+\)$")
_UNNAMED = re.compile(r"^0x[0-9a-f]+ ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Samples of a working daemon: how many, by group, and by the innermost function that has a name."""

    samples: int
    groups: Mapping[str, int]
    functions: Mapping[str, int]

    def text(self, cpu: float, *, top: int = 25) -> str:
        """Both lists, when the daemon took ``cpu`` microseconds a row."""
        lines = [f"{cpu:.1f} us of CPU a row, {self.samples} samples", "", "  us/row  share  doing"]
        lines += self._lines(self.groups, cpu, len(self.groups))
        lines += ["", "  us/row  share  in the function itself"]
        lines += self._lines(self.functions, cpu, top)
        return "\n".join(lines)

    def _lines(self, counts: Mapping[str, int], cpu: float, top: int) -> list[str]:
        most = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:top]
        return [f"  {cpu * n / self.samples:6.2f}  {n / self.samples:5.1%}  {name}" for name, n in most]


def read_stacks(text: str, groups: Groups) -> Profile:
    """Sort py-spy's raw stacks (`frame;frame;... count`, the outermost first) of the main thread.

    Left out is what is no work on rows: the start of the process, waiting for something to happen, other threads.
    """
    matchers = [(name, re.compile(pattern)) for name, pattern in groups]
    by_group: Counter[str] = Counter()
    by_function: Counter[str] = Counter()
    for line in text.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if "outboxd/runtime/loop.py" not in stack or _START.search(stack) or _is_waiting(frames):
            continue
        by_group[next((name for name, matcher in matchers if matcher.search(stack)), "other")] += int(count)
        by_function[_innermost(frames)] += int(count)
    return Profile(samples=by_group.total(), groups=by_group, functions=by_function)


def _is_waiting(frames: Sequence[str]) -> bool:
    # The system call itself often has no name; then the function around it tells.
    named = [frame for frame in frames if not _UNNAMED.match(frame)]
    return bool(named) and bool(_WAITING.search(named[-1]))


def _innermost(frames: Sequence[str]) -> str:
    named = [frame for frame in frames if not _UNNAMED.match(frame)]
    return _LINE.sub(")", (named or frames)[-1])

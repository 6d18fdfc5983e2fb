"""Chaos on real servers: break a pipeline's processes and connections, then compare what went in with what came out.

Made for outboxd's own tests and for yours: a daemon with your configuration and plugins in a process of its own, a
real Kafka and Postgres (extra `dev`), faults drawn from a seed, writers that know which of their rows were committed,
and checks that say which invariant is broken by which rows. Needs no test framework. `docs/chaos.md` shows a run.
"""

from outboxd.testing.chaos.books import Books, HandledRow, LetterRow, WrittenRow
from outboxd.testing.chaos.consumer_check import CommitWatch, check_consumer
from outboxd.testing.chaos.daemon import Daemon
from outboxd.testing.chaos.faults import Fault, blackhole, cut, delay, freeze, kill, lost_answers, refuse, terminate
from outboxd.testing.chaos.proxy import Flow, Proxy
from outboxd.testing.chaos.relay_check import check_relay
from outboxd.testing.chaos.report import INVARIANTS, Report, Violation
from outboxd.testing.chaos.schedule import Schedule, Strike
from outboxd.testing.chaos.stack import ChaosStack
from outboxd.testing.chaos.topics import fill_topic, read_topic
from outboxd.testing.chaos.waiting import NotSeen, until
from outboxd.testing.chaos.writers import Fate, Ledger, Writers

__all__ = [
    "INVARIANTS",
    "Books",
    "ChaosStack",
    "CommitWatch",
    "Daemon",
    "Fate",
    "Fault",
    "Flow",
    "HandledRow",
    "Ledger",
    "LetterRow",
    "NotSeen",
    "Proxy",
    "Report",
    "Schedule",
    "Strike",
    "Violation",
    "Writers",
    "WrittenRow",
    "blackhole",
    "check_consumer",
    "check_relay",
    "cut",
    "delay",
    "fill_topic",
    "freeze",
    "kill",
    "lost_answers",
    "read_topic",
    "refuse",
    "terminate",
    "until",
]

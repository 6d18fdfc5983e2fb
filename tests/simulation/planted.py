"""Known mistakes, planted in a copy of the package: a simulator that does not find them is blind.

`python -m tests.simulation.planted NAME` plants one and runs seeds until it is found.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import outboxd.errors

__all__ = ["MISTAKES", "Edit", "Mistake", "find"]

_ROOT = Path(__file__).parents[2]
_PACKAGE = Path(outboxd.errors.__file__).parent


@dataclass(frozen=True, slots=True)
class Edit:
    """In this file of the package, this text (which stands there once) becomes that one."""

    file: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake, the story that meets it, and the edits that make it."""

    name: str
    story: str
    edits: Sequence[Edit]


MISTAKES = (
    Mistake(
        "a row is marked before its actions",
        "relay",
        [
            Edit(
                "pipeline/relay/holding.py",
                "            self.actions.submit(batch, list(zip(rows, positions, strict=True)))\n",
                "            self.actions.submit(batch, list(zip(rows, positions, strict=True)))\n"
                "            self._marker.add(self._shard, batch.row_ids, batch.size, batch)\n",
            )
        ],
    ),
    Mistake(
        "an action does not wait for the statement of the row before it",
        "relay",
        [
            Edit(
                "pipeline/relay/actions.py",
                "            if committed is not None and context.plans.is_mixed(row.topic):\n",
                "            if committed is not None and not context.plans.is_mixed(row.topic):\n",
            )
        ],
    ),
    Mistake(
        "an offset is committed past a gap",
        "consumer",
        [
            Edit(
                "pipeline/consumer/progress.py",
                "        for offset in self.pending:\n            return offset\n        return self.position\n",
                "        return self.position\n",
            )
        ],
    ),
    Mistake(
        "a letter counts before the sink has answered",
        "consumer",
        [
            Edit(
                "pipeline/consumer/dead_letters.py",
                "        self._queue_up(record)\n\n    def keep",
                "        self._queue_up(record)\n        record.partition.done(record)\n\n    def keep",
            )
        ],
    ),
    Mistake(
        "a producer is rebuilt under the same epoch",
        "relay",
        [
            Edit(
                "testing/fakes/kafka/producer.py",
                "    async def _next_epoch(self) -> tuple[int, int]:\n",
                "    async def _next_epoch(self) -> tuple[int, int]:\n"
                "        for earlier in self._connection.brokers.producers:\n"
                "            if earlier.transactional_id == self.transactional_id and earlier.client.epoch >= 0:\n"
                "                return earlier.client.producer_id, earlier.client.epoch\n",
            )
        ],
    ),
    Mistake(
        "records of other partitions are dropped when one poll raises",
        "consumer",
        [
            Edit(
                "pipeline/consumer/polling.py",
                "                partition.last_error = None\n                if records:\n",
                "                partition.last_error = None\n"
                "                has_raised, self.has_raised = getattr(self, 'has_raised', False), False\n"
                "                if records and not has_raised:\n",
            ),
            Edit(
                "pipeline/consumer/polling.py",
                "            except (BrokerError, TimeoutError) as error:\n                partition.last_error",
                "            except (BrokerError, TimeoutError) as error:\n"
                "                self.has_raised = True\n"
                "                partition.last_error",
            ),
        ],
    ),
    Mistake(
        "attempts are charged during an outage",
        "consumer",
        [
            Edit(
                "pipeline/consumer/settlement.py",
                "        if isinstance(outcome, Retrying | DeadLettered):\n",
                "        if isinstance(outcome, Retrying | DeadLettered | Outage):\n",
            )
        ],
    ),
    Mistake(
        "a letter that a sink refused counts as stored",
        "consumer",
        [
            Edit(
                "pipeline/letters/delivery.py",
                "            if isinstance(answer, Stored):\n",
                "            if isinstance(answer, Stored | Refused):\n",
            )
        ],
    ),
    Mistake(
        "a replay that an outage ended counts as failed",
        "consumer",
        [
            Edit(
                "pipeline/letters/replay.py",
                "        except (ReplayPostponed, AssignmentLost):\n            raise\n        except Exception as error",
                "        except Exception as error",
            )
        ],
    ),
)


def find(mistake: Mistake, seeds: int) -> subprocess.CompletedProcess[str]:
    """Run so many seeds on a copy of the package that has the mistake; the exit code is 1 when a seed failed."""
    with tempfile.TemporaryDirectory(prefix="outboxd-planted-") as folder:
        copy = Path(folder) / "outboxd"
        shutil.copytree(_PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for edit in mistake.edits:
            _make(copy, edit)
        return subprocess.run(
            [
                *(sys.executable, "-m", "tests.simulation"),
                *("--story", mistake.story, "--seeds", str(seeds), "--most-failures", "1"),
            ],
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{_ROOT}", "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )


def _make(copy: Path, edit: Edit) -> None:
    path = copy / edit.file
    text = path.read_text("utf-8")
    if text.count(edit.before) != 1:
        raise ValueError(
            f"{edit.file} has changed: it does not hold once what the mistake is to replace: {edit.before!r}"
        )
    path.write_text(text.replace(edit.before, edit.after), "utf-8")


def main(words: Sequence[str]) -> int:
    """Find one mistake, or all; 1 when one is not found."""
    wanted = [mistake for mistake in MISTAKES if not words or mistake.name == " ".join(words)]
    if not wanted:
        print(f"no mistake is called {' '.join(words)!r}; there are:", *(each.name for each in MISTAKES), sep="\n    ")
        return 2
    missed = 0
    for mistake in wanted:
        found = find(mistake, 1000)
        # A copy that cannot even be imported ends with 1, too, and shows nothing.
        is_found = found.returncode == 1 and "failed: Violation: invariant" in found.stdout
        missed += not is_found
        print(f"== {mistake.name}: {'found' if is_found else 'NOT FOUND'}")
        print("\n".join(found.stdout.splitlines()[-4:]), found.stderr[-2000:])
    return missed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

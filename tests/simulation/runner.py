"""Runs seeds: one story each, in a loop of its own, and says of a failure all that is needed to see it again."""

from __future__ import annotations

import asyncio
import random
import signal
import traceback
from dataclasses import dataclass
from types import FrameType

from tests.simulation.consumer_story import ConsumerStory
from tests.simulation.loop import SimulationLoop
from tests.simulation.relay_story import RelayStory
from tests.simulation.story import Story

__all__ = ["STORIES", "Outcome", "run_seed"]

STORIES: dict[str, type[Story]] = {"consumer": ConsumerStory, "relay": RelayStory}
_WALL_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a seed. ``failure`` is None for a clean run; ``schedule`` is what happened, in words, if it is told."""

    seed: int
    story: str
    digest: int
    failure: str | None = None
    trace: str = ""
    schedule: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What runs this seed again."""
        return f"make simulate SEED={self.seed} STORY={self.story}"


def story_of(seed: int) -> str:
    """Which story a seed tells."""
    names = sorted(STORIES)
    return names[seed % len(names)]


def run_seed(seed: int, story: str | None = None, *, is_told: bool = False) -> Outcome:
    """Play the seed's story. Never raises for what the story finds. ``is_told``: give the schedule of a clean run, too."""
    name = story or story_of(seed)
    told: list[Story] = []

    async def tell() -> None:
        one = STORIES[name](seed)
        told.append(one)
        await one.tell()

    before = random.getstate()
    random.seed(seed)
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(_WALL_SECONDS)
    failure, trace = None, ""
    try:
        with asyncio.Runner(loop_factory=SimulationLoop) as runner:
            runner.run(tell())
    except (Exception, BaseExceptionGroup, _Spins) as error:  # noqa: BLE001  # whatever it is, it is this seed's outcome
        failure = f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        failure = f"{type(error).__name__}: {error}"
        trace = "".join(traceback.format_exception(error))
    finally:
        signal.alarm(0)
        random.setstate(before)
    journal = told[0].journal if told else None
    return Outcome(
        seed=seed,
        story=name,
        digest=0 if journal is None else journal.digest,
        failure=failure,
        trace=trace,
        schedule=tuple(journal.lines) if journal is not None and (is_told or failure is not None) else (),
    )


class _Spins(BaseException):
    """The wall clock says that this run will not end."""


def _too_long(number: int, frame: FrameType | None) -> None:
    raise _Spins(f"the run takes more than {_WALL_SECONDS} s of real time")

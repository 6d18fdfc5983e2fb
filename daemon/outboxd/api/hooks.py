"""The hook specifications: how a distribution tells outboxd what it brings, and what it wants to be told.

A distribution names modules (or objects) with hook implementations under the entry-point group `outboxd`. pluggy is
synchronous and far dearer than a call, so records never travel through hooks: registration hooks are called once, when
the daemon starts; observers once per batch, letter or change of state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pluggy

from outboxd.lifecycle import PipelineState
from outboxd.records import Letter, LetterStatus

__all__ = ["API_VERSION", "ENTRY_POINT_GROUP", "hookimpl", "hookspec"]

API_VERSION: Final = "1"
"""The version of this API. A plugin module may set `OUTBOXD_API_VERSION = "1"`; another value refuses it by name."""
ENTRY_POINT_GROUP: Final = "outboxd"

hookspec = pluggy.HookspecMarker("outboxd")
hookimpl = pluggy.HookimplMarker("outboxd")

# -- registration: called once at start, in no particular order; a name registered twice for one kind is an error --------


@hookspec
def outboxd_register_handlers() -> Mapping[str, type]:  # type: ignore[empty-body]
    """Handlers by the name that `handler.type` uses; each a type as `outboxd.api.Handler` describes."""


@hookspec
def outboxd_register_actions() -> Mapping[str, type]:  # type: ignore[empty-body]
    """Actions by the name that `after_publish[].type` uses: `outboxd.api.Action` or `TransactionalAction`."""


@hookspec
def outboxd_register_classifiers() -> Mapping[str, type]:  # type: ignore[empty-body]
    """Classifiers by name, asked after the rules: `outboxd.api.Classifier`."""


@hookspec
def outboxd_register_sinks() -> Mapping[str, type]:  # type: ignore[empty-body]
    """Dead-letter sinks by the name that `chain[].type` uses: `outboxd.api.Sink`, maybe `ReadableSink` too."""


@hookspec
def outboxd_register_codecs() -> Mapping[str, type]:  # type: ignore[empty-body]
    """Codecs by the name that `consume.decode` uses: `outboxd.api.Codec`."""


@hookspec
def outboxd_register_config_schemes() -> Mapping[str, type]:  # type: ignore[empty-body]
    """Schemes for `${scheme:argument}`: types that are made without arguments and called with the argument."""


# -- letters: called before a letter is written; the first result that is not None wins ----------------------------------


@hookspec(firstresult=True)
def outboxd_redact(letter: Letter) -> Letter | None:
    """A letter with less in it, before any sink sees it; None leaves it as it is. Its id must stay the same."""


@hookspec(firstresult=True)
def outboxd_fingerprint(letter: Letter) -> str | None:
    """A finer fingerprint than outboxd's own; None leaves it."""


# -- observers: told afterwards; a plugin that raises is logged and counted, and never felt by the data path --------------


@hookspec
def outboxd_pipeline_state_changed(pipeline: str, before: PipelineState, after: PipelineState) -> None:
    """A pipeline of this replica moved from one state to the next."""


@hookspec
def outboxd_batch_published(pipeline: str, topic: str, partition: int, offset: int, count: int) -> None:
    """The broker acknowledged a batch of rows; ``offset`` is that of its first record."""


@hookspec
def outboxd_letter_written(letter: Letter, sink: str) -> None:
    """The sink has this letter durably."""


@hookspec
def outboxd_letter_moved(letter_id: str, before: LetterStatus, after: LetterStatus, actor: str) -> None:
    """A letter changed its status in its home, through this replica."""


@hookspec
def outboxd_replay_finished(job_id: str, resolved: int, failed: int) -> None:
    """A replay job came to its end in this replica."""

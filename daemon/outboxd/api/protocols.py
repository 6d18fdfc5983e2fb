"""What each kind of plugin is: a class made with (settings, context), with `open`, its one verb, and `close`.

`handle` and `act` may be coroutine functions or plain ones; plain ones run in a thread. `classify`, `decode` and
`statement` are always plain and run inline: they must not block. Errors are raised, never returned, except where a
union says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import ClassVar, Protocol, runtime_checkable

from outboxd.api.context import ActionContext, HandlerContext, PluginContext
from outboxd.api.settings import PluginSettings
from outboxd.records import Failure, Letter, Published, RawRecord, Record, Refused, Stored, Verdict

__all__ = [
    "Action",
    "Classifier",
    "Codec",
    "ConfigScheme",
    "Handler",
    "NoSettings",
    "Plugin",
    "ReadableSink",
    "Sink",
    "StatelessPlugin",
    "TransactionalAction",
]


class Plugin(Protocol):
    """The frame of every plugin type. ``Settings`` is its settings model; ``__init__`` does no I/O."""

    Settings: ClassVar[type[PluginSettings]]

    def __init__(self, settings: PluginSettings, context: PluginContext) -> None: ...

    async def open(self) -> None:
        """Make ready. Called once, before the first verb; raising fails (or, for a sink, degrades) its pipeline only."""
        ...

    async def close(self) -> None:
        """Give everything back. Called once, after the last verb, also when `open` raised."""
        ...


class NoSettings(PluginSettings):
    """No options."""


class StatelessPlugin:
    """Base for plugins with nothing to open and nothing to close."""

    Settings: ClassVar[type[PluginSettings]] = NoSettings

    def __init__(self, settings: PluginSettings, context: PluginContext) -> None:
        self._settings = settings
        self._context = context

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close."""


@runtime_checkable
class Handler(Protocol):
    """Handles one record of a consumer.

    Returning None means handled; returning a Verdict other than RETRY decides the record without an error being
    raised (`skip`, `dead_letter`, `pause`, `stop`); an exception is classified by the rules.
    """

    def handle(self, record: Record, context: HandlerContext) -> Awaitable[Verdict | None] | Verdict | None:
        """Handle the record; may be called again for the same record (at least once)."""
        ...


@runtime_checkable
class Action(Protocol):
    """Runs after a row was published and before it counts as done; at least once."""

    def act(self, published: Published, context: ActionContext) -> Awaitable[None] | None:
        """Do it; an exception means that the row is not done and only the actions are tried again."""
        ...


@runtime_checkable
class TransactionalAction(Protocol):
    """An action on the outbox's own connection: the core runs its statement in the transaction of the mark."""

    def statement(self, published: Published) -> tuple[str, Sequence[object]]:
        """SQL with `$1`-style parameters, and their values."""
        ...


@runtime_checkable
class Classifier(Protocol):
    """Decides what becomes of a failed record when no rule did."""

    def classify(self, failure: Failure, context: PluginContext) -> Verdict | None:
        """A verdict, or None for "not mine"."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Takes letters durably.

    ``is_durable`` says whether a letter it stored survives the loss of this process.
    """

    is_durable: ClassVar[bool]

    async def write(self, letters: Sequence[Letter]) -> Sequence[Stored | Refused]:
        """One answer per letter, in order, when they are durable.

        Raises SinkUnavailable: then all are tried elsewhere, and a letter may come again later under the same id.
        """
        ...


@runtime_checkable
class ReadableSink(Protocol):
    """A sink whose letters can be read back: what makes drain, list and export possible."""

    async def read(self, position: str | None, limit: int) -> tuple[Sequence[Letter], str]:
        """Up to ``limit`` letters after ``position`` (None: from the start), oldest first, and the position after them.

        The position is the sink's own text; nothing to read gives no letters and a position that is as good.
        """
        ...


@runtime_checkable
class Codec(Protocol):
    """Makes a value of a record's bytes."""

    def decode(self, raw: bytes | None, record: RawRecord) -> object:
        """The value. Raises Undecodable; any other exception counts as that too."""
        ...


@runtime_checkable
class ConfigScheme(Protocol):
    """Resolves `${scheme:argument}` in the configuration. A plain callable object; its values count as secret."""

    def __call__(self, argument: str) -> str:
        """The text. Raises LookupError with a message that names what is missing, never its value."""
        ...

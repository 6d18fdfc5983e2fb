"""An error and everything behind it, read without trusting it: any attribute of an error may lie or raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from outboxd.errors import HandlerTimeout

__all__ = ["chain_of", "class_name", "class_names", "message_of", "root_of", "sqlstates_of"]

_MOST_ERRORS: Final = 200
_MOST_CHARACTERS: Final = 65_536
_BARE_MODULES: Final = frozenset({"builtins", "__main__"})


def chain_of(error: BaseException) -> Sequence[BaseException]:
    """The error, its causes (or contexts, unless suppressed) and the members of groups, each once, outermost first.

    What is behind a HandlerTimeout is our own cancellation, not an error of the handler: the walk ends there.
    """
    found: list[BaseException] = []
    seen: set[int] = set()
    waiting = [error]
    while waiting and len(found) < _MOST_ERRORS:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        found.append(current)
        waiting.extend(_members(current))
        if (behind := _behind(current)) is not None:
            waiting.append(behind)
    return found


def root_of(error: BaseException) -> BaseException:
    """The innermost error: the end of the causes; of a group the root of its first member."""
    seen: set[int] = set()
    current = error
    while id(current) not in seen:
        seen.add(id(current))
        members = _members(current)
        behind = members[0] if members else _behind(current)
        if behind is None or id(behind) in seen:
            break
        current = behind
    return current


def class_name(kind: type[BaseException]) -> str:
    """The class as a traceback prints it: `module.QualName`, builtins bare."""
    module = kind.__module__
    if not isinstance(module, str) or module in _BARE_MODULES:
        return kind.__qualname__
    return f"{module}.{kind.__qualname__}"


def class_names(kind: type[BaseException]) -> Sequence[str]:
    """The names of the class and of every class above it."""
    return [class_name(parent) for parent in kind.__mro__ if issubclass(parent, BaseException)]


def message_of(error: BaseException) -> str:
    """``str(error)``, cut to 64 Ki characters; a text that says so when the error cannot be printed."""
    try:
        return str(error)[:_MOST_CHARACTERS]
    except Exception as broken:  # noqa: BLE001 - __str__ of a stranger may raise anything
        return f"<{class_name(type(error))} cannot be printed: its __str__ raised {class_name(type(broken))}>"


def sqlstates_of(error: BaseException) -> Sequence[str]:
    """The SQLSTATEs that the error or the driver's error in its ``orig`` (SQLAlchemy) carries."""
    holders = (error, _attribute(error, "orig"))
    states = (_attribute(holder, name) for holder in holders for name in ("sqlstate", "pgcode"))
    return [state for state in states if isinstance(state, str)]


def _attribute(holder: object, name: str) -> object:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property of a stranger may raise anything
        return None


def _members(error: BaseException) -> Sequence[BaseException]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _behind(error: BaseException) -> BaseException | None:
    if isinstance(error, HandlerTimeout):
        return None
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__

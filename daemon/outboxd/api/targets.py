"""`module:function` targets: how a YAML names a function of the user's own code."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import StringConstraints

from outboxd.errors import PluginBroken

__all__ = ["TargetName", "load_target"]

_PATTERN: Final = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"

TargetName = Annotated[str, StringConstraints(pattern=_PATTERN)]
"""`package.module:function`; the function may be an attribute of a class or object (`module:Class.method`)."""


def load_target(target: str) -> Callable[..., Any]:
    """The function that ``target`` names, taking (value, context).

    A function that takes one positional argument is given the value alone. A coroutine function stays one, so that
    whoever calls it can tell (`inspect.iscoroutinefunction`). Raises PluginBroken with the remedy.
    """
    module_name, _, path = target.partition(":")
    try:
        found: object = importlib.import_module(module_name)
    except Exception as error:
        raise PluginBroken(
            f"the target {target!r} cannot be imported: {type(error).__name__}: {error}",
            suggestion=f"correct the name, or install the distribution that brings {module_name!r} beside outboxd; "
            "modules in the working directory of `outboxd run`, or in PYTHONPATH, are found too",
        ) from error
    for name in path.split("."):
        found = getattr(found, name, None)
        if found is None:
            raise PluginBroken(
                f"the target {target!r} is not there: {module_name!r} has no {path!r}",
                suggestion="a target is written module:function",
            )
    if not callable(found):
        raise PluginBroken(f"the target {target!r} is not a function but {type(found).__name__}")
    return _taking_context(found, target)


def _taking_context(function: Callable[..., Any], target: str) -> Callable[..., Any]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise PluginBroken(f"the target {target!r} has no signature that can be read") from error
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}
    ]
    required = sum(parameter.default is parameter.empty for parameter in positional)
    is_variadic = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    if required > 2 or not (positional or is_variadic):
        raise PluginBroken(
            f"the target {target!r} takes {required} arguments",
            suggestion="it is called with the record, or with the record and the context",
        )
    is_coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004  # an object whose call is a coroutine function
    )
    if len(positional) > 1 or is_variadic:
        return _as_coroutine(function) if is_coroutine else function
    if is_coroutine:

        async def alone(value: object, _context: object) -> object:
            return await function(value)

        return alone
    return lambda value, _context: function(value)


def _as_coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, or for an object with a coroutine function as its call one that can be seen to be one."""
    if inspect.iscoroutinefunction(function):
        return function

    async def call(value: object, context: object) -> object:
        return await function(value, context)

    return call

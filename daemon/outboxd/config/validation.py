"""Runs settings models over parts of the source and turns pydantic's errors into problems with place and remedy."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from outboxd.config.problems import KeyPath, Problem
from outboxd.config.reflection import known_keys
from outboxd.config.source import Source, at, in_plugin_options, put
from outboxd.config.suggestion import closest
from outboxd.config.yaml import scalar_of
from outboxd.registry import Registry

__all__ = ["validate"]

_M = TypeVar("_M", bound=BaseModel)

_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "string_type": ("must be a text", "write it in quotes"),
    "int_type": ("must be a whole number", "write a number without quotes, or correct the variable"),
    "int_from_float": ("must be a whole number", "leave out the fraction"),
    "float_type": ("must be a number", "write a number without quotes, or correct the variable"),
    "bool_type": ("must be true or false", "write true or false, without quotes"),
    "tuple_type": ("must be a list", "write [a, b], or one item a line with a hyphen before each"),
    "list_type": ("must be a list", "write [a, b], or one item a line with a hyphen before each"),
    "dict_type": ("must be a mapping of keys to values", "write {key: value}, or one `key: value` a line"),
    "mapping_type": ("must be a mapping of keys to values", "write {key: value}, or one `key: value` a line"),
    "model_type": ("must be a mapping of keys to values", "write {key: value}, or one `key: value` a line"),
    "none_required": ("must be null", "leave it out"),
}
_REMEDIES: Final[Mapping[str, str]] = {
    "not_available_yet": "remove the key: its default applies",
    "contradiction": "change one of them",
    "incomplete": "write what is missing",
    "host_not_loopback": "use 127.0.0.1 (or ::1), with a proxy in front that authenticates",
    "not_a_power_of_two": "use 8, the default, unless more than 8 replicas share the work",
    "regex_invalid": "correct the pattern; a literal . or ( is written with a backslash, in single quotes",
    "duplicate_name": "give each its own `name`",
}
_FORMS: Final[Mapping[str, str]] = {
    "target": "write package.module:function",
    "sqlstate": 'write the beginning of a SQLSTATE in quotes: "40001", "08"',
    "table": 'write schema.table, with double quotes around names that need them: app."Outbox"',
    "topic": "a topic has up to 249 letters, digits, dots, underscores and hyphens",
    "topics": "a topic has up to 249 letters, digits, dots, underscores and hyphens",
    "otlp_endpoint": "write http://host:4318",
}


def validate(model: type[_M], source: Source, path: KeyPath, registry: Registry) -> _M | None:
    """The part at ``path`` as ``model``; None when it is wrong, and why is in the source's problems.

    Text from outside has no type of its own: where a number or a truth value is wanted it is read as YAML would.
    """
    errors: list[ErrorDetails] = []
    for _ in range(3):
        data = at(source.data, path)
        try:
            return model.model_validate({} if data is None else data, context={"resolver": registry})
        except ValidationError as error:
            errors = error.errors(include_url=False)
        if not _retype(source, path, errors):
            break
    report = _Report(model, source, path, registry)
    for detail in _without_consequences(errors):
        where = (*path, *detail["loc"])
        if not source.has_failed(where):
            source.problems.append(report.problem(detail, where))
    return None


def _without_consequences(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Items that are refused make their list too short: only they are reported."""
    below = {error["loc"][:length] for error in errors for length in range(len(error["loc"]))}
    return [error for error in errors if not (error["type"] == "too_short" and error["loc"] in below)]


def _retype(source: Source, path: KeyPath, errors: list[ErrorDetails]) -> bool:
    """Give texts from outside the type that was asked for; True when there was one to change."""
    changed = False
    for error in errors:
        where = (*path, *error["loc"])
        text = at(source.data, where)
        if (
            error["type"] in {"int_type", "float_type", "bool_type"}
            and where in source.outside
            and isinstance(text, str)
        ):
            meant = scalar_of(text.strip())
            if not isinstance(meant, str):
                put(source.data, where, meant)
                changed = True
    return changed


class _Report:
    """Says what one validation found, in words of the YAML and never with a value that came from outside."""

    def __init__(self, model: type[BaseModel], source: Source, path: KeyPath, registry: Registry) -> None:
        self._model = model
        self._source = source
        self._path = path
        self._registry = registry

    def problem(self, error: ErrorDetails, where: KeyPath) -> Problem:
        kind = error["type"]
        code, message, suggestion = self._described(error, where)
        place = self._source.place(where)
        if code in {"unknown_key", "not_available_yet"}:
            place = self._source.key_place(where)
        elif code == "missing_key":
            place = self._source.key_place(where[:-1])
        if self._reveals(kind, message + suggestion, where):
            message = "the value is refused; why is hidden, since it comes from outside"
            suggestion = (
                f"look at the value behind {self._source.text(where)}"
                if where in self._source.outside
                else ("look at the values of this part that come from outside")
            )
        return Problem(place=place, code=code, message=message, suggestion=suggestion, path=where)

    def _described(self, error: ErrorDetails, where: KeyPath) -> tuple[str, str, str]:
        """Code, message and suggestion."""
        match error["type"]:
            case kind if kind in _TYPES:
                return "wrong_type", *_TYPES[kind]
            case "missing":
                return "missing_key", "the key is missing", f"add `{where[-1]}: ...`"
            case "extra_forbidden":
                return "unknown_key", "there is no such key", closest(str(where[-1]), self._unused_keys(where))
            case "literal_error" | "enum":
                return _choice(error)
            case "string_pattern_mismatch":
                return _pattern(error, where)
            case "value_error" | "assertion_error":
                return _value(error)
            case _:
                return _other(error)

    def _unused_keys(self, where: KeyPath) -> set[str]:
        below = where[len(self._path) : -1]
        known = known_keys(self._model, below, at(self._source.data, self._path), self._registry)
        present = at(self._source.data, where[:-1])
        return set(known) - set(present if isinstance(present, dict) else ())

    def _reveals(self, kind: str, said: str, where: KeyPath) -> bool:
        """True when a text that we did not write shares a word with a value from outside."""
        if kind == "not_available_yet" or not (in_plugin_options(where) or kind == "regex_invalid"):
            return False
        words = {word for value in self._source.outside_at(where) for word in re.findall(r"\w{3,}", value)}
        return any(word in said for word in words)


def _choice(error: ErrorDetails) -> tuple[str, str, str]:
    choices = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
    hint = closest(str(error["input"]), choices)
    listed = ", ".join(choices)
    return "unknown_value", f"must be one of {listed}", hint if hint.startswith("did") else f"use one of {listed}"


def _pattern(error: ErrorDetails, where: KeyPath) -> tuple[str, str, str]:
    name = next((str(step) for step in reversed(where) if isinstance(step, str) and step in _FORMS), "")
    pattern = error.get("ctx", {}).get("pattern", "")
    return "wrong_format", "does not have the right form", _FORMS.get(name, f"it must match {pattern}")


def _value(error: ErrorDetails) -> tuple[str, str, str]:
    text = str(error.get("ctx", {}).get("error", error["msg"]))
    for mark in (": write ", ", such as ", "; "):
        message, found, remedy = text.partition(mark)
        if found:
            lead = {": write ": "write ", ", such as ": "for example "}.get(mark, "")
            return "invalid_value", message, lead + remedy
    return "invalid_value", text, "correct the value"


def _other(error: ErrorDetails) -> tuple[str, str, str]:
    code, context = error["type"], error.get("ctx", {})
    suggestion = context.get("suggestion") or _REMEDIES.get(code)
    message = error["msg"].removeprefix("Input ")
    if suggestion is not None:
        return code, message, str(suggestion)
    if code.startswith(("greater_", "less_", "too_", "finite", "string_too")):
        return "out_of_range", message[:1].lower() + message[1:], "choose a value within the range"
    return code, message, "correct the value"

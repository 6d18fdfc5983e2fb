"""Replaces `${scheme:argument}` in string values: once, after parsing, never inside the result, never in keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from outboxd.config.footprint import Footprint
from outboxd.config.yaml import scalar_text

__all__ = ["Interpolated", "InterpolationFailed", "Scheme", "builtin_schemes", "interpolate"]

Scheme: TypeAlias = Callable[[str], str]
"""Resolves the argument of a placeholder. Raises LookupError with a message that never holds a value."""

_TOKEN: Final = re.compile(r"\$\$|\$\{(?P<body>[^}]*)(?P<end>\})?")
_SCHEME: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9_-]*):(?P<argument>.*)", re.DOTALL)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_FILE: Final = 1024 * 1024


class InterpolationFailed(Exception):
    """A placeholder cannot be replaced. ``code`` and ``suggestion`` are those of the problem."""

    def __init__(self, code: str, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpolated:
    """A text with its placeholders replaced; ``values`` are what came from outside and must not be shown."""

    text: str
    values: tuple[str, ...]


def interpolate(text: str, schemes: Mapping[str, Scheme]) -> Interpolated:
    """Replace the placeholders of one string value; `$$` is a dollar, any other dollar stays as it is.

    Raises InterpolationFailed.
    """
    values: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match["end"] is None:
            raise InterpolationFailed(
                "placeholder_invalid", "a placeholder is not closed", "close it with }, or write $${"
            )
        values.append(_resolve(match["body"], schemes))
        return values[-1]

    return Interpolated(text=_TOKEN.sub(replace, text), values=tuple(values))


def _resolve(body: str, schemes: Mapping[str, Scheme]) -> str:
    match = _SCHEME.fullmatch(body)
    known = ", ".join(f"${{{name}:...}}" for name in sorted(schemes))
    if match is None:
        remedy = f"known are {known}; for a literal ${{ write $${{"
        raise InterpolationFailed("placeholder_invalid", f"${{{body}}} is no placeholder", remedy)
    scheme = match["scheme"]
    if scheme not in schemes:
        close = difflib.get_close_matches(scheme, schemes, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {known}; for a literal ${{ write $${{"
        raise InterpolationFailed("scheme_unknown", f"there is no scheme {scheme!r} for placeholders", hint)
    try:
        return schemes[scheme](match["argument"])
    except LookupError as error:
        message = str(error.args[0]) if error.args else f"${{{body}}} has no value"
        remedy = (
            "set it, or give a default: ${env:NAME:default}" if scheme == "env" else "see that it is there and readable"
        )
        raise InterpolationFailed("value_missing", message, remedy) from None
    except InterpolationFailed:
        raise
    except Exception as error:  # a plugin's scheme; its message may hold what must not be shown
        message = f"${{{body}}} could not be resolved: {type(error).__name__}"
        raise InterpolationFailed("value_missing", message, f"see what the scheme {scheme!r} needs") from error


def builtin_schemes(
    environ: Mapping[str, str], directory: Path, footprint: Footprint | None = None
) -> Mapping[str, Scheme]:
    """`env` and `file`; a relative file stands beside the configuration file, in ``directory``.

    ``footprint`` remembers the files that were asked for.
    """
    files = footprint or Footprint()
    return {"env": lambda argument: _env(argument, environ), "file": lambda argument: _file(argument, directory, files)}


def _env(argument: str, environ: Mapping[str, str]) -> str:
    name, colon, default = argument.partition(":")
    if not _NAME.fullmatch(name):
        raise InterpolationFailed(
            "placeholder_invalid",
            f"{name!r} is no name of an environment variable",
            "write ${env:NAME} or ${env:NAME:default}",
        )
    if name in environ:
        return environ[name]
    if colon:
        return default
    raise LookupError(f"the environment variable {name} is not set")


def _file(argument: str, directory: Path, files: Footprint) -> str:
    """`/path`, or `/path:key`: the whole argument when there is such a file, else the part before the last colon."""
    whole = directory / argument
    name, colon, key = argument.rpartition(":")
    if not colon or whole.is_file():
        return _content(whole, argument, files).removesuffix("\n").removesuffix("\r")
    files.note(whole)  # it would be taken if it came
    content = _content(directory / name, name, files)
    found = _dotenv(content).get(key) if _is_dotenv(Path(name)) else scalar_text(content, key)
    if found is None:
        raise LookupError(f"the file {name} has no key {key!r} with a text")
    return found


def _content(path: Path, said: str, files: Footprint) -> str:
    try:
        raw = files.read(path, _MAX_FILE)
    except OSError as error:
        raise LookupError(f"the file {said} cannot be read: {error.strerror}") from None
    except ValueError:
        raise LookupError("a file's name cannot hold a NUL") from None
    if len(raw) > _MAX_FILE:
        raise LookupError(f"the file {said} is larger than 1 MiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise LookupError(f"the file {said} is not UTF-8 text") from None


def _is_dotenv(path: Path) -> bool:
    return path.suffix == ".env" or path.name == ".env" or path.name.startswith(".env.")


def _dotenv(content: str) -> Mapping[str, str]:
    """`NAME=value` lines, `export` and comments allowed; quotes around a value are taken off."""
    found: dict[str, str] = {}
    for line in content.splitlines():
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and not name.startswith("#"):
            value = value.strip()
            is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
            found[name.strip()] = value[1:-1] if is_quoted else value
    return found

"""The settings of plugins: a frozen model that refuses unknown keys, and the value types of the YAML.

The docstring under a field is its reference text and its description in the JSON Schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SecretStr,
    WithJsonSchema,
    model_validator,
)

__all__ = [
    "ConnectionRef",
    "Duration",
    "KafkaConnectionName",
    "PluginSettings",
    "PositiveDuration",
    "PostgresConnectionName",
    "SecretStr",
    "Size",
    "format_duration",
    "parse_duration",
    "parse_size",
]

_DURATION_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZE_UNITS: Final = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
_DURATION_PATTERN: Final = r"^\d+(\.\d+)?(ms|s|m|h|d)$"
_SIZE_PATTERN: Final = r"^\d+(B|KiB|MiB|GiB|kB|MB|GB)$"


def parse_duration(value: object) -> timedelta:
    """`200ms`, `5s`, `2m`, `1h`, `7d` as a timedelta; a bare number is refused with the spelling to use.

    Raises ValueError.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'a duration needs a unit: write "{value}s" for seconds or "{value}ms" for milliseconds')  # noqa: TRY004  # pydantic reports ValueError
    if not isinstance(value, str) or not re.fullmatch(_DURATION_PATTERN[1:-1], value):
        raise ValueError('a duration is a number with a unit, such as "200ms", "5s", "2m", "1h" or "7d"')
    number, unit = re.split(r"(?=[a-z])", value, maxsplit=1)
    try:
        return timedelta(seconds=float(number) * _DURATION_UNITS[unit])
    except OverflowError:
        raise ValueError("a duration has an end: write a shorter one") from None


def format_duration(value: timedelta) -> str:
    """The shortest spelling that `parse_duration` reads back exactly, to the millisecond."""
    milliseconds = round(value.total_seconds() * 1000)
    for unit, factor in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % factor == 0:
            return f"{milliseconds // factor}{unit}"
    return f"{milliseconds}ms"


def parse_size(value: object) -> int:
    """`512B`, `64KiB`, `1MiB`, `1GiB` (powers of 1024; kB, MB, GB of 1000) as bytes; a bare number is refused.

    Raises ValueError.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError(f'a size needs a unit: write "{value}B" for bytes, or use KiB, MiB, GiB')  # noqa: TRY004  # pydantic reports ValueError
    if not isinstance(value, str) or not re.fullmatch(_SIZE_PATTERN[1:-1], value):
        raise ValueError('a size is a whole number with a unit, such as "512B", "64KiB", "1MiB" or "1GiB"')
    number, unit = re.split(r"(?=[A-Za-z])", value, maxsplit=1)
    return int(number) * _SIZE_UNITS[unit]


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _DURATION_PATTERN, "examples": ["200ms", "5s", "2m"]}),
]
"""A duration with its unit in the value."""


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("a duration of nothing has no effect here: write one above zero")
    return value


PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
"""A duration above zero."""

Size = Annotated[
    int,
    BeforeValidator(lambda value: value if isinstance(value, ParsedSize) else ParsedSize(parse_size(value))),
    WithJsonSchema({"type": "string", "pattern": _SIZE_PATTERN, "examples": ["64KiB", "1MiB", "1GiB"]}),
]
"""A size in bytes with its unit in the value."""


class ParsedSize(int):
    """Bytes that were read from a size with a unit; as the default of a `Size` field, say ``parse_size("1MiB")``."""


@dataclass(frozen=True, slots=True)
class ConnectionRef:
    """Marks a settings field as the name of a connection of this type; `outboxd check` then resolves it."""

    type: Literal["postgres", "kafka"]


PostgresConnectionName = Annotated[str, ConnectionRef("postgres")]
"""The name of a Postgres connection of the configuration."""
KafkaConnectionName = Annotated[str, ConnectionRef("kafka")]
"""The name of a Kafka connection of the configuration."""


class PluginSettings(BaseModel):
    """Base of every plugin's settings: frozen, strict about unknown keys, never shows the input it refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
        arbitrary_types_allowed=False,
        validate_default=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _without_free_keys(cls, data: Any) -> Any:
        """Keys starting with `x-` are free at every level, for anchors and notes."""
        if not isinstance(data, dict) or not any(isinstance(key, str) and key.startswith("x-") for key in data):
            return data
        return {key: value for key, value in data.items() if key in cls.model_fields or not str(key).startswith("x-")}

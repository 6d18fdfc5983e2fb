"""Marks on settings fields: a feature that comes later, another way to write a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

__all__ = ["AlsoWrittenAs", "Later"]


@dataclass(frozen=True, slots=True)
class Later:
    """Marks a field as not available yet: every written value is refused at the key's place, the default applies.

    ``allowed`` are the values that this version already has.
    """

    allowed: tuple[str, ...] = ()

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self._refuse, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Editors offer what is allowed, and underline a key that is not available yet."""
        written: Mapping[str, Any] = handler(schema)
        if self.allowed:
            return {**written, "enum": list(self.allowed)}
        return {"not": {}, "x-outboxd-later": True}

    def _refuse(self, value: object) -> object:
        if value in self.allowed:
            return value
        if self.allowed:
            raise PydanticCustomError(
                "not_available_yet", "is not available yet in this version; available: {allowed}", self._context()
            )
        raise PydanticCustomError("not_available_yet", "is not available yet in this version")

    def _context(self) -> dict[str, Any]:
        return {"allowed": ", ".join(self.allowed)}


@dataclass(frozen=True, slots=True)
class AlsoWrittenAs:
    """Tells the JSON Schema of a short form that a validator takes: one item for a list of it, or null."""

    form: Literal["item", "null"]

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """The long form and the short one."""
        written = handler(schema)
        short = written["items"] if self.form == "item" else {"type": "null"}
        return {"anyOf": [written, short]}

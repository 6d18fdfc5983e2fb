"""How settings name a plugin: `type` and that plugin's own options, beside keys that belong to the place it stands in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, cast

from pydantic import (
    GetJsonSchemaHandler,
    InstanceOf,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, InitErrorDetails, PydanticCustomError, PydanticKnownError

from outboxd.api.settings import PluginSettings
from outboxd.errors import PluginError

__all__ = ["PluginKind", "PluginReference", "PluginResolver", "PluginUse"]

PluginKind: TypeAlias = Literal["handler", "action", "classifier", "sink", "codec", "config_scheme"]
"""The kinds of plugin, as error messages and `outboxd plugins list` call them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginReference:
    """A plugin that the configuration names.

    ``options`` are the YAML's own values; ``settings`` the instance of the plugin's `Settings` model made of them.
    """

    kind: PluginKind
    type: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)
    settings: PluginSettings = field(default_factory=PluginSettings, repr=False)


class PluginResolver(Protocol):
    """Turns a name and options into a reference; `outboxd.registry.Registry` is one."""

    def resolve(self, kind: PluginKind, name: str, options: Mapping[str, object]) -> PluginReference:
        """Raises PluginError for the name, pydantic's ValidationError for the options."""
        ...


class PluginUse(PluginSettings):
    """Base of settings that name a plugin: what is no field of the subclass is an option of the plugin.

    A resolver is taken from the validation context (`{"resolver": ...}`); without one the options are taken as they are.
    """

    kind: ClassVar[PluginKind]
    plugin: InstanceOf[PluginReference]
    """The plugin and its settings."""

    @model_validator(mode="wrap")
    @classmethod
    def _split(cls, data: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Take our own keys and the plugin's apart, and report the errors of both at once."""
        if isinstance(data, str):
            data = {"type": data}
        if not isinstance(data, Mapping) or isinstance(data.get("plugin"), PluginReference):
            return handler(data)
        ours = {key: value for key, value in data.items() if key in cls.model_fields and key != "plugin"}
        options = {key: value for key, value in data.items() if key not in ours and key != "type"}
        problems: list[InitErrorDetails] = []
        try:
            ours["plugin"] = cls._reference(data, options, info)
        except ValidationError as error:
            problems += map(_again, error.errors(include_url=False))
            ours["plugin"] = PluginReference(kind=cls.kind, type="")
        try:
            made = handler(ours)
        except ValidationError as error:
            problems += map(_again, error.errors(include_url=False))
            raise ValidationError.from_exception_data(cls.__name__, problems, hide_input=True) from None
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems, hide_input=True)
        return made

    @classmethod
    def _reference(
        cls, data: Mapping[str, object], options: Mapping[str, object], info: ValidationInfo
    ) -> PluginReference:
        name = data.get("type")
        if not isinstance(name, str):
            raise _at("type", "missing" if name is None else "string_type", name)
        resolver = cast("PluginResolver | None", (info.context or {}).get("resolver"))
        if resolver is None:
            return PluginReference(kind=cls.kind, type=name, options=options)
        try:
            return resolver.resolve(cls.kind, name, options)
        except PluginError as error:
            hint = {"suggestion": error.suggestion}
            raise _at("type", PydanticCustomError(error.code, _literally(error.message), hint), name) from None

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The plugin's options are filled in by `outboxd schema`, from what is installed."""
        written = handler.resolve_ref_schema(handler(schema))
        written.get("properties", {}).pop("plugin", None)
        written["required"] = [key for key in written.get("required", []) if key != "plugin"]
        written["x-outboxd-plugin"] = cls.kind
        return written


def _at(key: str, problem: str | PydanticCustomError, value: object) -> ValidationError:
    details = InitErrorDetails(type=problem, loc=(key,), input=value)
    return ValidationError.from_exception_data("plugin", [details], hide_input=True)


def _literally(message: str) -> Any:
    """A message with braces of its own as a template without placeholders."""
    return message.replace("{", "(").replace("}", ")")


def _again(error: ErrorDetails) -> InitErrorDetails:
    """An error that was reported, as one that can be raised again."""
    context = error.get("ctx", {})
    try:
        PydanticKnownError(error["type"], context or None)  # type: ignore[arg-type]  # the names are pydantic's own
    except KeyError:
        custom = PydanticCustomError(error["type"], _literally(error["msg"]), context)
        return InitErrorDetails(type=custom, loc=error["loc"], input=error["input"])
    return InitErrorDetails(type=error["type"], loc=error["loc"], input=error["input"], ctx=context)

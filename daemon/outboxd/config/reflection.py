"""Looks into settings models: which keys are known at a place, which fields name connections or hold secrets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

from outboxd.api.references import PluginReference, PluginUse
from outboxd.api.settings import ConnectionRef
from outboxd.config.problems import KeyPath
from outboxd.config.source import at
from outboxd.config.yaml import Value
from outboxd.errors import PluginError
from outboxd.registry import Registry

__all__ = ["connection_names", "known_keys", "models_in", "named_files", "secret_paths", "uses_in", "written_names"]


def known_keys(model: type[BaseModel], path: KeyPath, data: Value, registry: Registry) -> Iterable[str]:
    """The keys that the mapping at ``path`` below ``model`` may have; ``data`` is the value that belongs to the model."""
    for index, step in enumerate(path):
        if isinstance(step, int):
            continue
        if issubclass(model, PluginUse) and step not in model.model_fields:
            plugin = _plugin_model(model, at(data, path[:index]), registry)
            return () if plugin is None else known_keys(plugin, path[index:], at(data, path[:index]), registry)
        if step not in model.model_fields:
            continue
        following = _model_in(model.model_fields[step].annotation)
        if following is None:
            return ()
        model = following
    keys = [key for key in model.model_fields if not (issubclass(model, PluginUse) and key == "plugin")]
    if issubclass(model, PluginUse):
        plugin = _plugin_model(model, at(data, path), registry)
        keys += ["type", *(plugin.model_fields if plugin else ())]
    return keys


def _plugin_model(use: type[PluginUse], data: Value, registry: Registry) -> type[BaseModel] | None:
    name = data.get("type") if isinstance(data, dict) else data
    if not isinstance(name, str):
        return None
    try:
        return registry.get(use.kind, name).settings
    except PluginError:
        return None


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation leads to, through unions, tuples and mappings."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in reversed(get_args(annotation)):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def models_in(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, BaseModel]]:
    """Every settings model in a value, plugins' included, each with the path at which it is written."""
    if isinstance(value, PluginReference):
        yield from models_in(value.settings, path)
    elif isinstance(value, BaseModel):
        yield path, value
        for name in type(value).model_fields:
            is_reference = isinstance(value, PluginUse) and name == "plugin"
            yield from models_in(getattr(value, name), path if is_reference else (*path, name))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from models_in(item, (*path, str(key)))
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from models_in(item, (*path, index))


def uses_in(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, PluginUse]]:
    """Every place that names a plugin."""
    for where, model in models_in(value, path):
        if isinstance(model, PluginUse):
            yield where, model


def connection_names(value: object, path: KeyPath) -> Iterator[tuple[KeyPath, str, ConnectionRef]]:
    """Every connection that settings name: where, its name, and which type it must have."""
    for where, model in models_in(value, path):
        for name, info in type(model).model_fields.items():
            reference = _reference(info.annotation, info.metadata)
            written = getattr(model, name)
            if reference is not None and isinstance(written, str):
                yield (*where, name), written, reference


def written_names(
    model: type[BaseModel], data: Value, path: KeyPath, registry: Registry
) -> Iterator[tuple[KeyPath, str, ConnectionRef]]:
    """The same from what is written, valid or not: one mistake must not hide another."""
    if issubclass(model, PluginUse):
        plugin = _plugin_model(model, data, registry)
        if plugin is not None:
            yield from written_names(plugin, data, path, registry)
    if not isinstance(data, dict):
        return
    for name, info in model.model_fields.items():
        written = data.get(name)
        reference = _reference(info.annotation, info.metadata)
        if reference is not None:
            if isinstance(written, str):
                yield (*path, name), written, reference
            continue
        inner = _model_in(info.annotation)
        if inner is not None:
            for where, item in _items(info.annotation, written, (*path, name)):
                yield from written_names(inner, item, where, registry)


def _items(annotation: Any, written: Value, path: KeyPath) -> Iterator[tuple[KeyPath, Value]]:
    """The values in which a field's models are written: one, a list of them, or a mapping of names to them."""
    if isinstance(written, list):
        yield from (((*path, index), item) for index, item in enumerate(written))
    elif isinstance(written, dict) and _is_mapping(annotation):
        yield from (((*path, key), item) for key, item in written.items())
    else:
        yield path, written


def _is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) is Mapping or any(_is_mapping(argument) for argument in get_args(annotation))


def _reference(annotation: Any, metadata: Iterable[Any] = ()) -> ConnectionRef | None:
    for item in (*metadata, *getattr(annotation, "__metadata__", ())):
        if isinstance(item, ConnectionRef):
            return item
    for argument in get_args(annotation):
        found = _reference(argument)
        if found is not None:
            return found
    return None


def secret_paths(value: object, path: KeyPath) -> Iterator[KeyPath]:
    """The paths of secret values."""
    for where, model in models_in(value, path):
        for name in type(model).model_fields:
            if isinstance(getattr(model, name), SecretStr):
                yield (*where, name)


def named_files(value: object) -> Iterator[str]:
    """The files that settings name for somebody else to read: certificates and keys."""
    for _, model in models_in(value, ()):
        for name in type(model).model_fields:
            written = getattr(model, name)
            if name.endswith("_file") and isinstance(written, str):
                yield written

"""What is installed: plugins found by entry point, checked, and handed out by kind and name. Nothing is global.

A plugin that cannot be loaded disables only itself; a name that two distributions claim only those who use it.
"""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import pluggy
from pydantic import ValidationError

from outboxd.api import hooks
from outboxd.api.hooks import API_VERSION, ENTRY_POINT_GROUP
from outboxd.api.references import PluginKind, PluginReference
from outboxd.api.settings import PluginSettings
from outboxd.errors import PluginBroken, PluginClash, PluginError, PluginUnknown
from outboxd.records import Letter
from outboxd.telemetry.emitter import Telemetry
from outboxd.telemetry.plugins import HookFailed

__all__ = ["BrokenPlugin", "EntryPoint", "Hooks", "InstalledPlugin", "Registry", "build_registry"]

_KINDS: Final[Mapping[PluginKind, tuple[str, Sequence[str]]]] = {
    "handler": ("outboxd_register_handlers", ("handle", "handle_batch")),
    "action": ("outboxd_register_actions", ("act", "statement")),
    "classifier": ("outboxd_register_classifiers", ("classify",)),
    "sink": ("outboxd_register_sinks", ("write",)),
    "codec": ("outboxd_register_codecs", ("decode",)),
    "config_scheme": ("outboxd_register_config_schemes", ("__call__",)),
}
"""For each kind the hook that registers it, and its verbs, of which it has at least one."""


class Distribution(Protocol):
    """The part of `importlib.metadata.Distribution` that is used here."""

    @property
    def name(self) -> str:
        """Its name, as pip knows it."""
        ...

    @property
    def version(self) -> str:
        """Its version."""
        ...


class EntryPoint(Protocol):
    """The part of `importlib.metadata.EntryPoint` that is used here."""

    @property
    def name(self) -> str:
        """What the distribution calls it."""
        ...

    @property
    def dist(self) -> Distribution | None:
        """Who brings it."""
        ...

    def load(self) -> object:
        """Import it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledPlugin:
    """A plugin type under its registered name, and who brings it."""

    kind: PluginKind
    name: str
    implementation: type
    distribution: str
    version: str

    @property
    def settings(self) -> type[PluginSettings]:
        """Its settings model; config schemes have none and give the empty one."""
        model: type[PluginSettings] = getattr(self.implementation, "Settings", PluginSettings)
        return model


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenPlugin:
    """An entry point that could not be used, and why."""

    entry_point: str
    distribution: str
    version: str
    reason: str


class Registry:
    """Plugin types by kind and name. Made by `build_registry`."""

    def __init__(
        self, manager: pluggy.PluginManager, plugins: Iterable[InstalledPlugin], broken: Sequence[BrokenPlugin] = ()
    ) -> None:
        self.manager = manager
        self.broken = tuple(broken)
        self._plugins: dict[tuple[str, str], list[InstalledPlugin]] = {}
        for plugin in plugins:
            self._plugins.setdefault((plugin.kind, plugin.name), []).append(plugin)

    def plugins(self, kind: PluginKind | None = None) -> Sequence[InstalledPlugin]:
        """What is installed, by kind and name; of a name that is claimed twice every claim."""
        found = [plugin for plugins in self._plugins.values() for plugin in plugins if kind in {None, plugin.kind}]
        return sorted(found, key=lambda plugin: (plugin.kind, plugin.name, plugin.distribution))

    def get(self, kind: PluginKind, name: str) -> InstalledPlugin:
        """The plugin of this kind and name. Raises PluginUnknown, PluginClash or PluginBroken."""
        found = self._plugins.get((kind, name), ())
        if not found:
            raise self._unknown(kind, name)
        if len(found) > 1:
            owners = " and ".join(sorted(f"{plugin.distribution} {plugin.version}" for plugin in found))
            raise PluginClash(
                f"{_said(kind)} {name!r} is registered by {owners}", suggestion="uninstall one of these distributions"
            )
        return found[0]

    def resolve(self, kind: PluginKind, name: str, options: Mapping[str, object]) -> PluginReference:
        """The plugin with its settings made of ``options``. Raises PluginError; ValidationError for the options."""
        plugin = self.get(kind, name)
        try:
            settings = plugin.settings.model_validate(options)
        except (ValidationError, PluginError):
            raise
        except Exception as error:  # noqa: BLE001  # a validator of a stranger's model; its message may hold a secret
            raise PluginBroken(
                f"the settings of {_said(kind)} {name!r} cannot be checked: its own check raised {type(error).__name__}",
                suggestion=f"report it to whoever brings {plugin.distribution} {plugin.version}",
            ) from None
        return PluginReference(kind=kind, type=name, options=options, settings=settings)

    def _unknown(self, kind: PluginKind, name: str) -> PluginError:
        names = [plugin.name for plugin in self.plugins(kind)]
        close = difflib.get_close_matches(name, names, n=1)
        if close:
            return PluginUnknown(f"no {_said(kind)} is called {name!r}", suggestion=f"did you mean {close[0]!r}?")
        if self.broken:
            reasons = "; ".join(
                f"{plugin.distribution} ({plugin.entry_point}): {plugin.reason}" for plugin in self.broken
            )
            return PluginBroken(
                f"no {_said(kind)} is called {name!r}, and a plugin could not be loaded: {reasons}",
                suggestion="repair or uninstall that distribution; `outboxd plugins list` shows it",
            )
        known = f"; installed: {', '.join(names)}" if names else ""
        return PluginUnknown(
            f"no {_said(kind)} is called {name!r}",
            suggestion=f"install the distribution that brings it{known}",
        )


class Hooks:
    """Calls the hooks of everything that is installed; made once by the composition root."""

    def __init__(self, registry: Registry, telemetry: Telemetry) -> None:
        self._hook = registry.manager.hook
        self._telemetry = telemetry

    def notify(self, hook: str, **facts: object) -> None:
        """Tell the observers of ``hook`` (`outboxd_letter_written`, ...); one that raises is logged and counted."""
        for implementation in reversed(getattr(self._hook, hook).get_hookimpls()):
            try:
                implementation.function(*(facts[name] for name in implementation.argnames))
            except Exception as error:  # noqa: BLE001  # never felt by the data path
                self._telemetry.emit(HookFailed(hook=hook, plugin=implementation.plugin_name, error=error))

    def redact(self, letter: Letter) -> Letter:
        """The letter as sinks may see it.

        Raises PluginBroken when a plugin raises or changes the id: the letter may then not be written anywhere, since
        it would show what must not be shown, and its partition waits, visibly.
        """
        try:
            redacted: Letter | None = self._hook.outboxd_redact(letter=letter)
        except Exception as error:
            raise PluginBroken(f"the hook outboxd_redact raised {type(error).__name__}: {error}") from error
        if redacted is None:
            return letter
        if not isinstance(redacted, Letter) or redacted.id != letter.id:
            raise PluginBroken("the hook outboxd_redact must give a Letter with the same id, or None")
        return redacted

    def fingerprint(self, letter: Letter) -> str:
        """The letter's fingerprint: a plugin's finer one, else its own; a plugin that raises has no say."""
        for implementation in reversed(self._hook.outboxd_fingerprint.get_hookimpls()):
            try:
                finer = cast("str | None", implementation.function(*(letter for _ in implementation.argnames)))
            except Exception as error:  # noqa: BLE001  # a letter is written whatever a plugin thinks of it
                failed = HookFailed(hook="outboxd_fingerprint", plugin=implementation.plugin_name, error=error)
                self._telemetry.emit(failed)
            else:
                if finer is not None:
                    return finer
        return letter.fingerprint


def build_registry(entry_points: Iterable[EntryPoint] | None = None) -> Registry:
    """Find and load what is installed; ``entry_points`` stands in for the environment's, in tests. Never raises."""
    found = importlib.metadata.entry_points(group=ENTRY_POINT_GROUP) if entry_points is None else entry_points
    manager = pluggy.PluginManager("outboxd")
    manager.add_hookspecs(hooks)
    plugins: list[InstalledPlugin] = []
    broken: list[BrokenPlugin] = []
    for point in sorted(found, key=lambda point: (_owner(point), point.name)):
        try:
            plugins += _load(manager, point)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a stranger's module raises disables that module only
            owner, version = _owner(point)
            reason = error.message if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
            broken.append(
                BrokenPlugin(entry_point=point.name, distribution=owner, version=version, reason=reason),
            )
    return Registry(manager, plugins, broken)


def _load(manager: pluggy.PluginManager, point: EntryPoint) -> Sequence[InstalledPlugin]:
    """Import one entry point, register its hooks, and collect what it brings; all of it or nothing."""
    loaded = point.load()
    wanted = getattr(loaded, "OUTBOXD_API_VERSION", API_VERSION)
    if wanted != API_VERSION:
        raise PluginBroken(f"it is written for plugin API {wanted!r}, this outboxd has {API_VERSION!r}")
    owner, version = _owner(point)
    name = f"{owner}:{point.name}"
    manager.register(loaded, name)
    try:
        manager.check_pending()
        return [
            _checked(InstalledPlugin(kind=kind, name=key, implementation=value, distribution=owner, version=version))
            for kind, (hook, _) in _KINDS.items()
            for key, value in _registered(manager, hook, name).items()
        ]
    except Exception:
        manager.unregister(name=name)
        raise


def _registered(manager: pluggy.PluginManager, hook: str, plugin: str) -> Mapping[str, type]:
    caller: pluggy.HookCaller = getattr(manager.hook, hook)
    registered: dict[str, type] = {}
    for implementation in caller.get_hookimpls():
        if implementation.plugin_name == plugin:
            given: Mapping[str, type] | None = cast("Callable[[], Any]", implementation.function)()
            registered.update(given or {})
    return registered


def _checked(plugin: InstalledPlugin) -> InstalledPlugin:
    what = f"{_said(plugin.kind)} {plugin.name!r}"
    verbs = _KINDS[plugin.kind][1]
    if not isinstance(plugin.implementation, type):
        raise PluginBroken(f"{what} is not a class")
    if not any(_declares(plugin.implementation, verb) for verb in verbs):
        raise PluginBroken(f"{what} has no {' or '.join(f'`{verb}`' for verb in verbs)}")
    if not (isinstance(plugin.settings, type) and issubclass(plugin.settings, PluginSettings)):
        raise PluginBroken(f"`Settings` of {what} is not a subclass of outboxd.api.PluginSettings")
    return plugin


def _declares(cls: type, verb: str) -> bool:
    """True for a method, and for an attribute that is only annotated and bound when the plugin opens."""
    return any(verb in vars(base) or verb in vars(base).get("__annotations__", {}) for base in cls.__mro__[:-1])


def _owner(point: EntryPoint) -> tuple[str, str]:
    return ("unknown", "0") if point.dist is None else (point.dist.name, point.dist.version)


def _said(kind: PluginKind) -> str:
    return kind.replace("_", " ")

"""What is installed: found, checked, and one bad distribution never takes the others along."""

from __future__ import annotations

from typing import Annotated, ClassVar

import pytest
from pydantic import AfterValidator

from outboxd.api import PluginSettings, hookimpl
from outboxd.errors import PluginBroken, PluginClash, PluginUnknown
from outboxd.registry import build_registry
from tests.unit.plugin_doubles import (
    FakeDistribution,
    FakeEntryPoint,
    ForgetfulSink,
    SecretiveHandler,
    plugin_module,
)


def test_the_first_party_plugins_are_found_the_way_a_strangers_are() -> None:
    found = {(plugin.kind, plugin.name) for plugin in build_registry().plugins()}
    assert {("handler", name) for name in ("python", "log", "forward")} <= found
    assert {("action", name) for name in ("python", "sql")} <= found
    assert {("sink", name) for name in ("postgres", "kafka", "spool")} <= found
    assert {("codec", name) for name in ("raw", "json", "text")} <= found


def test_a_plugin_is_handed_out_with_its_distribution_and_settings() -> None:
    registry = build_registry([FakeEntryPoint(plugin_module(handlers={"h": SecretiveHandler}))])
    plugin = registry.get("handler", "h")
    assert (plugin.distribution, plugin.version, plugin.implementation) == ("acme", "1.0", SecretiveHandler)
    assert registry.resolve("handler", "h", {"url": "x"}).settings.url == "x"  # type: ignore[attr-defined]


def test_an_unknown_name_is_answered_with_the_closest_one() -> None:
    registry = build_registry([FakeEntryPoint(plugin_module(handlers={"python": SecretiveHandler}))])
    with pytest.raises(PluginUnknown, match="pyhton") as caught:
        registry.get("handler", "pyhton")
    assert caught.value.suggestion == "did you mean 'python'?"
    with pytest.raises(PluginUnknown):
        registry.get("sink", "python")


def test_a_name_that_two_distributions_claim_is_an_error_that_names_both_and_only_for_who_uses_it() -> None:
    one = FakeEntryPoint(plugin_module(handlers={"h": SecretiveHandler, "mine": SecretiveHandler}))
    two = FakeEntryPoint(plugin_module(handlers={"h": SecretiveHandler}), dist=FakeDistribution("other", "2.0"))
    registry = build_registry([one, two])
    with pytest.raises(PluginClash, match=r"acme 1\.0 and other 2\.0"):
        registry.get("handler", "h")
    assert registry.get("handler", "mine").distribution == "acme"


class WithoutVerb:
    """No handler."""


class WithoutSettings:
    """A handler whose settings are no model."""

    Settings = dict

    async def handle(self) -> None:
        """Nothing."""


@hookimpl
def outboxd_register_handler() -> dict[str, type]:
    return {}


@pytest.mark.parametrize(
    ("loaded", "reason"),
    [
        (ModuleNotFoundError("no numpy"), "ModuleNotFoundError: no numpy"),
        (SystemExit(3), "SystemExit: 3"),
        (plugin_module(handlers={"h": WithoutVerb}), "handler 'h' has no `handle` or `handle_batch`"),
        (plugin_module(handlers={"h": WithoutSettings}), "not a subclass of outboxd.api.PluginSettings"),
        (plugin_module(handlers={"h": "text"}), "handler 'h' is not a class"),
        (plugin_module(handlers=5), "TypeError"),
        (plugin_module(OUTBOXD_API_VERSION="2"), "plugin API '2', this outboxd has '1'"),
        (plugin_module(outboxd_register_handler=outboxd_register_handler), "unknown hook"),
    ],
)
def test_a_plugin_that_cannot_be_loaded_disables_only_itself(loaded: object, reason: str) -> None:
    good = FakeEntryPoint(plugin_module(handlers={"good": SecretiveHandler}), name="good")
    registry = build_registry([FakeEntryPoint(loaded, name="bad", dist=FakeDistribution("broken", "3.0")), good])
    assert registry.get("handler", "good").name == "good"
    assert [(plugin.entry_point, plugin.distribution) for plugin in registry.broken] == [("bad", "broken")]
    assert reason in registry.broken[0].reason
    with pytest.raises(PluginBroken, match="broken"):
        registry.get("handler", "zzz")


def test_the_right_api_version_is_accepted() -> None:
    module = plugin_module(OUTBOXD_API_VERSION="1", sinks={"s": ForgetfulSink})
    assert build_registry([FakeEntryPoint(module)]).get("sink", "s").name == "s"


def _broken_check(value: str) -> str:
    raise KeyError(f"s3cr3t {value}")


class BrokenCheckSettings(PluginSettings):
    """A model whose own check is wrong."""

    url: Annotated[str, AfterValidator(_broken_check)]
    """Any."""


class BrokenCheckHandler(SecretiveHandler):
    """A handler whose settings cannot be checked."""

    Settings: ClassVar[type[PluginSettings]] = BrokenCheckSettings


def test_a_settings_model_that_raises_something_else_is_broken_and_its_words_are_not_shown() -> None:
    registry = build_registry([FakeEntryPoint(plugin_module(handlers={"h": BrokenCheckHandler}))])
    with pytest.raises(PluginBroken, match="KeyError") as caught:
        registry.resolve("handler", "h", {"url": "x"})
    assert "s3cr3t" not in str(caught.value)

"""What may be a target, and how it is called."""

from __future__ import annotations

import inspect

import pytest
from pydantic import ValidationError

from outboxd.api import load_target
from outboxd.errors import PluginBroken
from outboxd_plugins.handlers.python import PythonHandlerSettings
from tests.plugins import targets


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    targets.seen.clear()


async def test_a_coroutine_function_stays_one_with_and_without_context() -> None:
    both, alone = (load_target(f"tests.plugins.targets:{name}") for name in ("note_async", "note_alone_async"))
    assert inspect.iscoroutinefunction(both)
    assert inspect.iscoroutinefunction(alone)
    await both(1, 2)
    await alone(3, 4)
    assert targets.seen == [(1, 2), 3]


def test_a_plain_function_stays_plain() -> None:
    alone, anything = (load_target(f"tests.plugins.targets:{name}") for name in ("note_alone", "note_any"))
    assert not inspect.iscoroutinefunction(alone)
    alone(1, 2)
    anything(3, 4)
    assert targets.seen == [1, (3, 4)]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("no.such.module:f", "cannot be imported"),
        ("tests.plugins.targets:missing", "is not there"),
        ("tests.plugins.targets:not_a_function", "is not a function but int"),
        ("tests.plugins.targets:too_many", "takes 3 arguments"),
        ("tests.plugins.targets:none_at_all", "takes 0 arguments"),
    ],
)
def test_what_cannot_be_a_target_is_refused_with_the_reason(target: str, message: str) -> None:
    with pytest.raises(PluginBroken, match=message):
        load_target(target)


@pytest.mark.parametrize("text", ["module.function", "module:", ":function", "a b:c", "module:function()"])
def test_a_target_is_written_module_colon_function(text: str) -> None:
    with pytest.raises(ValidationError):
        PythonHandlerSettings(target=text)

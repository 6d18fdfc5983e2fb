from __future__ import annotations

from collections.abc import Sequence

import pytest

from outboxd.api import Letter, Refused, Sink, Stored
from outboxd.errors import DatabaseDenied, DatabaseUnreachable, SchemaBehind, SinkUnavailable
from outboxd_plugins.sinks.plugin import outboxd_register_sinks
from outboxd_plugins.sinks.postgres import PostgresSink, PostgresSinkSettings
from tests.plugins.sinks.doubles import Connections, a_context, a_letter


class Home:
    def __init__(self, answer: Sequence[Stored | Refused] | Exception) -> None:
        self.answer = answer
        self.calls: list[tuple[Sequence[Letter], str]] = []

    async def store(self, letters: Sequence[Letter], *, sink: str) -> Sequence[Stored | Refused]:
        self.calls.append((letters, sink))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def a_sink(home: Home) -> PostgresSink:
    return PostgresSink(PostgresSinkSettings(connection="shop"), a_context(Connections(shop=home), name="home"))


async def test_the_home_stores_the_letters_under_the_sinks_name() -> None:
    answers: list[Stored | Refused] = [Stored(), Refused(reason="too large")]
    home = Home(answers)
    sink = a_sink(home)
    assert isinstance(sink, Sink)
    await sink.open()
    assert await sink.write([a_letter(1), a_letter(2)]) == answers
    assert home.calls == [([a_letter(1), a_letter(2)], "home")]
    await sink.close()


@pytest.mark.parametrize(
    "error",
    [
        DatabaseUnreachable("refused"),
        DatabaseDenied("wrong password"),
        SchemaBehind("no schema outboxd", suggestion="run `outboxd migrate`"),
    ],
)
async def test_any_error_of_the_database_makes_the_sink_unavailable(error: Exception) -> None:
    with pytest.raises(SinkUnavailable, match="postgres connection shop") as raised:
        await a_sink(Home(error)).write([a_letter()])
    assert raised.value.suggestion == getattr(error, "suggestion", None)


def test_each_sink_is_registered_under_its_name() -> None:
    sinks = outboxd_register_sinks()
    assert set(sinks) == {"postgres", "kafka", "spool"}
    for sink in sinks.values():
        assert sink.is_durable  # type: ignore[attr-defined]
        assert sink.Settings.__doc__  # type: ignore[attr-defined]
        for name, field in sink.Settings.model_fields.items():  # type: ignore[attr-defined]
            assert field.description, f"{sink.__name__}.{name} has no docstring"

"""The first-party actions: what a statement may say, and what a row gives it."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest
from pydantic import ValidationError

from outboxd.api import PluginContext, Published, TransactionalAction
from outboxd.errors import PluginBroken
from outboxd.records import NO_HEADERS
from outboxd_plugins.actions.python import PythonAction, PythonActionSettings
from outboxd_plugins.actions.sql import SqlAction, SqlActionSettings, bind

CONTEXT = cast("PluginContext", object())


def published(**changes: Any) -> Published:
    values: dict[str, Any] = {
        "topic": "orders.new",
        "partition": 2,
        "offset": 40,
        "key": b"17",
        "value": b'{"a": 1}',
        "headers": NO_HEADERS,
        "timestamp": 1_700_000_000_000,
        "row_id": 9,
        "idempotency_id": "4dbb2a8e-31a4-5c5c-8a5e-0d1fbcb0a111",
    }
    return Published(**(values | changes))


def test_parameters_become_numbered_and_typed_in_the_order_they_come() -> None:
    assert bind("update o set p = $partition where id = $key::bigint and r = $row_id and q = $partition") == (
        "update o set p = $1::integer where id = $2::text::bigint and r = $3::bigint and q = $1::integer",
        ["partition", "key", "row_id"],
    )


@pytest.mark.parametrize(
    "untouched",
    [
        "select '$key'",
        "select 'it''s $key'",
        "select e'\\'$key'",
        'select "$key"',
        "select $$ $key $$",
        "select $tag$ $key $$ $tag$",
        "select 1 -- $key",
        "select 1 /* $key; */",
        "select a$key",
    ],
)
def test_what_only_looks_like_a_parameter_is_left_alone(untouched: str) -> None:
    assert bind(untouched) == (untouched, [])


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("select $kye", r"unknown parameter \$kye; did you mean \$key\?"),
        ("select $1", "unknown parameter"),
        ("select 1; select 2", "one statement only"),
        (" ", "empty"),
    ],
)
def test_a_statement_that_cannot_work_is_refused_when_the_configuration_is_read(statement: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SqlActionSettings(statement=statement)


def test_a_row_gives_its_values_to_the_statement() -> None:
    action = SqlAction(
        SqlActionSettings(
            statement="select f($row_id, $topic, $key, $value, $partition, $offset, $timestamp, $idempotency_id);"
        ),
        CONTEXT,
    )
    assert isinstance(action, TransactionalAction)
    sql, values = action.statement(published())
    assert sql.startswith("select f($1::bigint, $2::text, $3::text, $4::text, $5::integer, $6::bigint, $7::bigint, ")
    assert list(values) == [
        9,
        "orders.new",
        "17",
        '{"a": 1}',
        2,
        40,
        1_700_000_000_000,
        "4dbb2a8e-31a4-5c5c-8a5e-0d1fbcb0a111",
    ]


def test_a_null_key_is_null_and_an_empty_one_empty() -> None:
    action = SqlAction(SqlActionSettings(statement="select $key"), CONTEXT)
    assert action.statement(published(key=None))[1] == [None]
    assert action.statement(published(key=b""))[1] == [""]


def test_only_a_statement_that_uses_the_value_minds_that_it_is_not_text() -> None:
    row = published(value=b"\xff")
    assert SqlAction(SqlActionSettings(statement="select $key"), CONTEXT).statement(row)[1] == ["17"]
    with pytest.raises(ValueError, match="value is not UTF-8"):
        SqlAction(SqlActionSettings(statement="select $value"), CONTEXT).statement(row)


async def test_a_python_action_is_its_target_once_it_is_open() -> None:
    action = PythonAction(PythonActionSettings(target="tests.plugins.targets:note_async"), CONTEXT)
    await action.open()
    assert inspect.iscoroutinefunction(action.act)
    await action.close()


async def test_a_target_that_is_not_there_is_told_with_the_remedy() -> None:
    action = PythonAction(PythonActionSettings(target="tests.plugins.targets:missing"), CONTEXT)
    with pytest.raises(PluginBroken, match="has no 'missing'") as caught:
        await action.open()
    assert caught.value.suggestion == "a target is written module:function"

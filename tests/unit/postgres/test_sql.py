"""SQL files: each is described and used, table names are names, and nothing is left unfilled."""

from __future__ import annotations

from importlib.resources import files
from uuid import UUID

import pytest

from outboxd.errors import ConfigurationError
from outboxd.postgres.outbox_table import ColumnTypes, OutboxColumns, OutboxSql, OutboxTable
from outboxd.postgres.sql import migration_names, migration_text, query, quoted_literal, table_reference

PACKAGE = files("outboxd.postgres")
QUERIES = sorted(entry.name.removesuffix(".sql") for entry in PACKAGE.joinpath("queries").iterdir())
TYPES = ColumnTypes(
    id="bigint", topic="text", key="text", payload="bytea", headers="jsonb", timestamp="timestamp with time zone"
)


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_says_what_it_does_and_is_used(name: str) -> None:
    assert query(name).startswith("-- ")
    sources = [entry for entry in PACKAGE.iterdir() if entry.name.endswith(".py")]
    assert any(f'"{name}"' in source.read_text() for source in sources)


@pytest.mark.parametrize("name", migration_names())
def test_a_migration_says_what_it_does(name: str) -> None:
    assert migration_text(name).startswith("-- ")


@pytest.mark.parametrize("name", ["orders", "shop.orders", '"Shop"."Orders"', 'shop."a""b"', "_x1"])
def test_a_table_is_named_as_people_write_it(name: str) -> None:
    assert table_reference(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a;b", "a.b.c", "1a", '"a', "a--", "a\n", "(select 1)"])
def test_anything_else_is_no_table(name: str) -> None:
    with pytest.raises(ConfigurationError):
        table_reference(name)


def test_a_literal_is_quoted() -> None:
    assert quoted_literal("o'rders") == "'o''rders'"
    assert quoted_literal("a\\b'") == "E'a\\\\b'''"
    with pytest.raises(ConfigurationError):
        quoted_literal("\x00")


@pytest.mark.parametrize("is_staged", [False, True])
def test_every_place_of_the_outbox_statements_is_filled(is_staged: bool) -> None:
    sql = OutboxSql(OutboxTable(), TYPES, relay_id=UUID(int=1), shards=8, is_staged=is_staged)
    for text in (sql.fetch, sql.pending, sql.mark, sql.stage, sql.oldest):
        assert "{{" not in text


def test_conditions_are_joined_and_marks_update() -> None:
    table = OutboxTable(name="mine", where="a or b", marks={"published_at": "now()"}, columns=OutboxColumns(id="nr"))
    assert table.predicate == "(a or b) and (published_at is null)"
    assert table.done == "update mine set published_at = now() where ((a or b) and (published_at is null)) and nr"
    assert OutboxTable(pending="state = 0", marks={"state": "1"}).predicate == "(state = 0)"
    assert OutboxTable().done == "delete from outboxd.outbox where id"
    assert not table.needs_mark_column

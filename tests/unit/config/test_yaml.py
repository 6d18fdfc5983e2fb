"""YAML 1.2 with places, and the traps of YAML refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outboxd.config.yaml import Document, read_yaml, scalar_of, scalar_text


def only_problem(text: str) -> tuple[str, int, int]:
    problems = read_yaml(text, "f.yaml").problems
    assert len(problems) == 1, problems
    return problems[0].code, problems[0].place.line, problems[0].place.column


@pytest.mark.fixes("B056")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("NO", "NO"),
        ("12:30", "12:30"),
        ("0123", "0123"),
        ("012", "012"),
        ("0o14", "0o14"),
        ("1_000", "1_000"),
        ("2020-01-01", "2020-01-01"),
        ("1e3", 1000.0),
        ("1.10", 1.1),
        ("-7", -7),
        ("0", 0),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ('!!int "12"', 12),
    ],
)
def test_a_scalar_means_what_yaml_1_2_says(written: str, meant: object) -> None:
    value = read_yaml(f"a: {written}\n", "f.yaml").value
    assert isinstance(value, dict)
    assert value["a"] == meant
    assert type(value["a"]) is type(meant)


@pytest.mark.fixes("B056")
def test_a_key_is_always_a_text() -> None:
    assert read_yaml("on: 1\n1: 2\nnull: 3\n", "f").value == {"on": 1, "1": 2, "null": 3}


def test_places_are_those_of_key_and_value() -> None:
    document = read_yaml("a:\n  - b:   x\n    'c': [1,  2]\n", "f.yaml")
    assert str(document.keys["a", 0, "b"]) == "f.yaml:2:5"
    assert str(document.values["a", 0, "b"]) == "f.yaml:2:10"
    assert str(document.keys["a", 0, "c"]) == "f.yaml:3:5"
    assert str(document.values["a", 0, "c", 1]) == "f.yaml:3:15"


@pytest.mark.fixes("B056")
def test_a_duplicate_key_is_an_error_that_names_both_places() -> None:
    document = read_yaml("a: 1\nb:\n  c: 1\n  c: 2\na: 3\n", "f.yaml")
    found = [(problem.code, problem.place.line, problem.place.column, problem.message) for problem in document.problems]
    assert found == [
        ("duplicate_key", 5, 1, "the key stands here twice, first in line 1, column 1"),
        ("duplicate_key", 4, 3, "the key stands here twice, first in line 3, column 3"),
    ]


def test_a_merged_mapping_never_overrides_a_written_key() -> None:
    text = "x-c: &c {a: 1, b: 2}\nx-d: &d {b: 3, z: 4}\nm:\n  b: 9\n  <<: [*c, *d]\n"
    value = read_yaml(text, "f").value
    assert isinstance(value, dict)
    assert value["m"] == {"b": 9, "a": 1, "z": 4}
    assert str(read_yaml(text, "f").keys["m", "z"]) == "f:2:16"


def test_a_quoted_merge_key_is_a_key() -> None:
    assert read_yaml("'<<': 1\n", "f").value == {"<<": 1}


@pytest.mark.fixes("B056")
def test_an_alias_bomb_is_refused_before_it_is_unfolded() -> None:
    levels = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 8)]
    assert only_problem("\n".join(levels)) == ("alias_unbounded", 1, 1)


def test_an_alias_that_contains_itself_is_refused() -> None:
    assert only_problem("a: &a [*a]")[0] == "alias_unbounded"


@pytest.mark.parametrize("text", ["[" * 5000, "[" * 90 + "]" * 90])
def test_deep_nesting_is_refused(text: str) -> None:
    code, line, _ = only_problem(text)
    assert (code, line) == ("yaml_invalid", 1)


@pytest.mark.fixes("B056")
@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n...\n", "~\n"])
def test_an_empty_file_is_an_error(text: str) -> None:
    assert only_problem(text) == ("file_empty", 1, 1)


@pytest.mark.fixes("B056")
def test_a_second_document_is_an_error() -> None:
    assert only_problem("a: 1\n---\nb: 2\n") == ("several_documents", 2, 1)


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [("a: [1\n", 2, 1), ("a: b: c\n", 1, 5), ("a:\tb\n\tc: 1\n", 1, 3), ('a: "\\q"\n', 1, 5), ("a: \x01\n", 1, 1)],
)
def test_what_is_not_yaml_is_reported_with_its_place(text: str, line: int, column: int) -> None:
    assert only_problem(text)[:2] == ("yaml_invalid", line)
    assert only_problem(text)[2] >= column


@pytest.mark.parametrize("text", ["a: !foo x", "a: !!binary aGk=", 'a: !!int "x"', "a: !foo {b: 1}"])
def test_a_tag_that_does_not_fit_is_refused(text: str) -> None:
    assert only_problem(text) == ("wrong_tag", 1, 4)


def test_a_key_that_is_no_text_is_refused() -> None:
    assert only_problem("? [1]\n: 2\n")[0] == "wrong_key"


def test_merging_something_else_than_a_mapping_is_refused() -> None:
    assert only_problem("a: {<<: 5}\n")[0] == "wrong_merge"


def test_an_anchor_may_be_used_again() -> None:
    assert read_yaml("a: &x 1\nb: &x 2\nc: *x\n", "f").value == {"a": 1, "b": 2, "c": 2}


def test_a_syntax_error_never_quotes_the_file() -> None:
    for text in ("password: *hunter2\n", "password: [hunter2\n", "password: hunter2: x\n", "password: @hunter2\n"):
        (problem,) = read_yaml(text, "f").problems
        assert "hunter2" not in str(problem)


def test_one_key_of_a_file_is_its_text_as_written() -> None:
    text = "password: 0123\nnested: {a: 1}\non: yes\n"
    assert scalar_text(text, "password") == "0123"
    assert scalar_text(text, "on") == "yes"
    assert scalar_text(text, "nested") is None
    assert scalar_text(text, "absent") is None
    assert scalar_text("a: [", "a") is None


@given(st.integers())
def test_every_integer_is_read_as_itself(number: int) -> None:
    if len(str(number)) < 64:
        assert scalar_of(str(number)) == number


@given(st.text(max_size=200))
def test_reading_never_raises(text: str) -> None:
    assert isinstance(read_yaml(text, "f"), Document)

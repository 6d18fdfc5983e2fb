"""Which files are read, and how they become one configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from outboxd.config import ConfigurationInvalid, load
from outboxd.registry import Registry
from tests.unit.config.conftest import CONNECTIONS, Check, Load

RELAY = "pipelines:\n  {name}:\n    outbox: {{connection: shop, table: {table}}}\n    publish: {{connection: main}}\n"


def relay(name: str) -> str:
    return RELAY.format(name=name, table=f"app.{name}")


def test_a_folder_is_merged_by_section_and_name(load_text: Load) -> None:
    configuration = load_text({"a.yaml": CONNECTIONS, "b.yaml": relay("one"), "c.yaml": relay("two")})
    assert list(configuration.pipelines) == ["one", "two"]
    assert list(configuration.connections) == ["shop", "main"]


def test_hidden_names_other_endings_and_folders_in_it_are_skipped(tmp_path: Path, load_text: Load) -> None:
    (tmp_path / "nested.yaml").mkdir()
    (tmp_path / "nested.yaml" / "x.yaml").write_text("nonsense: 1\n")
    configuration = load_text(
        {"a.yaml": CONNECTIONS, ".hidden.yaml": "nonsense: 1\n", "b.yml": "nonsense: 1\n", "README": "nonsense"}
    )
    assert [file.name for file in configuration.files] == ["a.yaml"]


def test_a_config_map_mount_is_read_through_its_links(tmp_path: Path, registry: Registry) -> None:
    version = tmp_path / "..2026_01_01"
    version.mkdir()
    (version / "a.yaml").write_text(CONNECTIONS)
    (tmp_path / "..data").symlink_to(version.name)
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert list(load([tmp_path], environ={}, registry=registry).connections) == ["shop", "main"]


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path, registry: Registry) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(CONNECTIONS)
    assert load([tmp_path, file], environ={}, registry=registry).files == (file,)


def test_one_name_in_two_files_is_an_error_that_names_both_places(tmp_path: Path, problems_of: Check) -> None:
    (problem,) = problems_of({"a.yaml": CONNECTIONS + relay("one"), "b.yaml": "# note\n" + relay("one")})
    assert (problem.code, str(problem.place)) == ("defined_twice", f"{tmp_path}/b.yaml:3:3")
    assert f"{tmp_path}/a.yaml:6:3" in problem.message


def test_one_setting_of_the_process_in_two_files_is_an_error(problems_of: Check) -> None:
    assert problems_of({"a.yaml": "daemon: {name: a}\n", "b.yaml": "daemon: {drain_timeout: 5s}\n"}) == ()
    (problem,) = problems_of({"a.yaml": "daemon: {name: a}\n", "b.yaml": "daemon: {name: a}\n"})
    assert problem.code == "defined_twice"


def test_keys_with_x_are_free_at_every_level(load_text: Load) -> None:
    configuration = load_text(
        """
        x-retry: &retry {attempts: 3, x-why: "slow"}
        x-unused: ${env:NOBODY_SETS_THIS}
        connections:
          x-defaults: &pg {statement_timeout: 7s}
          shop: {<<: *pg, type: postgres, dsn: "postgresql://localhost/shop", x-owner: us}
          main: {type: kafka, bootstrap_servers: ["localhost:9092"]}
        pipelines:
          x-note: anything
          a:
            x-note: [1, 2]
            consume: {connection: main, topics: [t], x-note: 1}
            handler: {type: log, x-note: 1}
            errors: {retry: *retry, rules: [{when: {exception: ValueError, x-a: 1}, then: skip, x-b: 2}]}
            dead_letters: {chain: [{type: spool, directory: ./s, x-note: 1}]}
        """
    )
    assert list(configuration.pipelines) == ["a"]
    assert configuration.pipelines["a"].errors.retry.attempts == 3  # type: ignore[union-attr]
    assert configuration.connections["shop"].statement_timeout.total_seconds() == 7  # type: ignore[union-attr]
    assert "x-" not in str(configuration.document)


@pytest.mark.parametrize(
    ("files", "code"),
    [
        ({"a.yaml": ""}, "file_empty"),
        ({"a.yaml": "- 1\n"}, "wrong_type"),
        ({"a.yaml": "just text\n"}, "wrong_type"),
        ({}, "folder_empty"),
    ],
)
def test_what_cannot_be_a_configuration_is_an_error(files: dict[str, str], code: str, problems_of: Check) -> None:
    assert [problem.code for problem in problems_of(files)] == [code]


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path, registry: Registry) -> None:
    with pytest.raises(ConfigurationInvalid) as caught:
        load([tmp_path / "absent.yaml"], environ={}, registry=registry)
    assert [problem.code for problem in caught.value.problems] == ["file_missing"]


def test_bytes_that_are_not_utf_8_are_reported_with_their_place(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "a.yaml").write_bytes(b"a: 1\nb: \xff\n")
    with pytest.raises(ConfigurationInvalid) as caught:
        load([tmp_path], environ={}, registry=registry)
    (problem,) = caught.value.problems
    assert (problem.code, problem.place.line, problem.place.column) == ("yaml_invalid", 2, 4)


def test_a_byte_order_mark_is_no_content(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbf" + CONNECTIONS.encode())
    assert load([tmp_path], environ={}, registry=registry).connections


def test_every_problem_of_every_file_is_reported_at_once(problems_of: Check) -> None:
    found = problems_of(
        {
            "a.yaml": "daemon: {nmae: x}\n",
            "b.yaml": "connections:\n  a: {type: postgrs}\n",
            "c.yaml": "a: [\n",
            "d.yaml": "pipelines:\n  p: {outbox: {connection: '${env:NONE}'}, publish: {}}\n",
        }
    )
    assert [(problem.place.file[-6:], problem.code) for problem in found] == [
        ("a.yaml", "unknown_key"),
        ("b.yaml", "unknown_value"),
        ("c.yaml", "yaml_invalid"),
        ("d.yaml", "value_missing"),
        ("d.yaml", "missing_key"),
    ]

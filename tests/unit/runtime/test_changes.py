"""Which pipelines another configuration concerns: by what it means, not by how it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from outboxd.config import Configuration, load
from outboxd.registry import build_registry
from outboxd.runtime.changes import Changes, changes

BEFORE = """
daemon: {name: shop}
connections:
  main: {type: kafka, bootstrap_servers: [localhost:9092], security: {protocol: SSL, ca_file: CA}}
  other: {type: kafka, bootstrap_servers: [localhost:9093]}
  shop: {type: postgres, dsn: "postgresql://u:${file:password}@localhost/shop"}
  letters: {type: postgres, dsn: "postgresql://localhost/letters"}
pipelines:
  relay:
    outbox: {connection: shop}
    publish: {connection: other}
  orders:
    consume: {connection: main, topics: [orders]}
    handler: {type: log}
    dead_letters: {chain: [{type: postgres, connection: letters, deadline: 5s}]}
  payments:
    consume: {connection: other, topics: [payments]}
    handler: {type: log}
    dead_letters: {chain: [{type: kafka, connection: other, topic: payments.dlq}]}
"""


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "password").write_text("first\n")
    (tmp_path / "ca.pem").write_text("a certificate")
    return tmp_path


def _loaded(folder: Path, text: str) -> Configuration:
    path = folder / "pipelines.yaml"
    path.write_text(text.replace("CA", str(folder / "ca.pem")))
    return load([path], environ={}, registry=build_registry())


def _changes(folder: Path, *replacements: tuple[str, str], used: dict[str, set[str]] | None = None) -> Changes:
    before = _loaded(folder, BEFORE)
    after = BEFORE
    for old, new in replacements:
        assert old in after
        after = after.replace(old, new)
    return changes(before, _loaded(folder, after), used=lambda name: (used or {}).get(name, set()))


def test_the_same_written_in_another_way_is_no_change(files: Path) -> None:
    found = _changes(
        files,
        ("handler: {type: log}\n    dead_letters: {chain: [{type: postgres", "# a comment\n    errors: {}\n    handler:\n      type: log\n    dead_letters: {chain: [{type: postgres"),
        ("consume: {connection: other, topics: [payments]}", "consume: {topics: [payments], start: earliest, connection: other}"),
    )  # fmt: skip
    assert (found.changed, found.added, found.removed, found.connections, found.needs_restart) == (
        [],
        [],
        [],
        set(),
        [],
    )


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("topics: [orders]", "topics: [orders, more]", ["orders"]),
        ("deadline: 5s", "deadline: 6s", ["orders"]),
        ("localhost/letters", "elsewhere/letters", ["orders"]),
        ("localhost:9093", "localhost:9094", ["payments", "relay"]),
        ("localhost:9092", "localhost:9099", ["orders"]),
    ],
)
def test_only_what_has_changed_or_whose_connection_has_restarts(
    files: Path, old: str, new: str, changed: list[str]
) -> None:
    found = _changes(files, (old, new))
    assert (found.changed, found.added, found.removed) == (changed, [], [])


def test_a_connection_that_a_plugin_has_taken_counts_as_named(files: Path) -> None:
    found = _changes(files, ("localhost/letters", "elsewhere/letters"), used={"payments": {"letters"}})
    assert (found.rewritten, found.reconnected) == ([], ["orders", "payments"])


@pytest.mark.parametrize(("file", "changed"), [("password", ["relay"]), ("ca.pem", ["orders"])])
def test_a_rotated_secret_is_another_connection(files: Path, file: str, changed: list[str]) -> None:
    before = _loaded(files, BEFORE)
    (files / file).write_text("second\n")
    found = changes(before, _loaded(files, BEFORE), used=lambda _: set())
    assert (found.changed, found.needs_restart) == (changed, [])


def test_pipelines_that_come_go_and_turn_into_something_else(files: Path) -> None:
    found = _changes(
        files,
        ("  orders:\n", "  renamed:\n"),
        ("    outbox: {connection: shop}\n    publish: {connection: other}", "    consume: {connection: main, topics: [x]}\n    handler: {type: log}"),
    )  # fmt: skip
    assert (found.added, found.removed, found.replaced, found.rewritten) == (["renamed"], ["orders"], ["relay"], [])


def test_settings_of_the_process_count_from_its_next_start_on(files: Path) -> None:
    found = _changes(files, ("daemon: {name: shop}", "daemon: {name: shop, drain_timeout: 3s}\nhttp: {port: 99}"))
    assert (found.changed, found.needs_restart) == ([], ["daemon.drain_timeout", "http.port"])

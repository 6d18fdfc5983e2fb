"""Kafka's jars come from a repository that we do not trust: only recorded bytes are ever run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from outboxd.dev import DevServerFailed
from outboxd.dev.jars import REPOSITORY_VARIABLE, KafkaJars


class OtherBytes(BaseHTTPRequestHandler):
    """A repository that has every file, and never the right one."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"not a jar")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the library's name
        """Quiet."""


@pytest.fixture
def wrong_repository() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), OtherBytes)
    thread = threading.Thread(target=server.serve_forever, name="repository")
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_a_jar_with_other_bytes_is_refused_and_not_kept(
    empty_cache: Path, wrong_repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPOSITORY_VARIABLE, wrong_repository)
    with pytest.raises(DevServerFailed, match="expected") as refused:
        KafkaJars.ensure()
    assert refused.value.suggestion
    assert [path for path in empty_cache.rglob("*") if path.suffix == ".jar"] == []


def test_a_repository_out_of_reach_names_the_remedy_and_no_credentials(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(REPOSITORY_VARIABLE, "http://user:hunter2@127.0.0.1:1/maven")
    with pytest.raises(DevServerFailed, match="cannot fetch") as failure:
        KafkaJars.ensure()
    assert REPOSITORY_VARIABLE in (failure.value.suggestion or "")
    assert "hunter2" not in str(failure.value)
    assert failure.value.__cause__ is None

"""The daemon as an operator sees it: pipelines apart from each other, targets that last, an end in order."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import asyncpg
import httpx
import pytest

from tests.acceptance.conftest import MakeDaemon
from tests.acceptance.harness import records_of, until
from tests.conftest import TopicFactory

CONFIG = """
daemon: {{name: daemon-test, drain_timeout: 10s}}
connections:
  shop: {{type: postgres, dsn: "{dsn}"}}
  main: {{type: kafka, bootstrap_servers: ["{kafka}"]}}
pipelines:
  outbox:
    outbox: {{connection: shop}}
    publish: {{connection: main}}
  taker:
    consume: {{connection: main, topics: [{topic}], group: "{topic}-taker", decode: text, session_timeout: 6s}}
    handler: {{type: python, target: "tests.acceptance.functions:accept"}}
    dead_letters: {{chain: [{{type: postgres, connection: shop}}]}}
  broken:
    consume: {{connection: main, topics: [{topic}], group: "{topic}-broken"}}
    handler: {{type: python, target: "no.such.module:function"}}
    dead_letters: {{chain: [{{type: postgres, connection: shop}}]}}
"""


@pytest.mark.fixes("B061")
async def test_a_pipeline_that_cannot_start_fails_alone_and_targets_survive_a_restart(
    kafka_bootstrap: str,
    postgres_dsn: str,
    topic_factory: TopicFactory,
    make_daemon: MakeDaemon,
    calls: Callable[[], list[str]],
) -> None:
    topic = await topic_factory(partitions=2)
    daemon = make_daemon(CONFIG.format(dsn=postgres_dsn, kafka=kafka_bootstrap, topic=topic))
    daemon.migrate()
    await daemon.started("outbox", "taker")

    async def failed() -> bool:
        return bool((await daemon.status("broken"))["reason"] == "plugin_broken")

    await until(failed, what="the broken pipeline says why")
    broken = next(status for status in await daemon.ask("status") if status["name"] == "broken")
    assert broken["state"] in {"FAILED", "RESTARTING"}
    assert "no.such.module" in broken["message"]
    assert set(broken) >= {"name", "kind", "target", "state", "reason", "message", "since", "restarts", "detail"}
    assert (broken["kind"], broken["target"]) == ("consumer", "started")
    async with httpx.AsyncClient(base_url=daemon.url) as client:
        assert (await client.get("/healthz/live")).status_code == 200
        assert (await client.get("/healthz/ready")).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert 'outboxd_pipeline_state{kind="relay",pipeline="outbox",state="RUNNING"} 1.0' in metrics
        assert (await client.get("/v1/pipelines/nobody/status")).status_code == 404

    await daemon.ask("pause", "taker", "--reason", "a test")

    async def paused() -> bool:
        return (await daemon.states())["taker"] == "PAUSED"

    await until(paused)
    connection = await asyncpg.connect(postgres_dsn)
    try:
        await connection.execute("select outboxd.enqueue($1, 'k', 'v'::text)", topic)
    finally:
        await connection.close()
    # The target is kept: a daemon that was killed comes back paused.
    daemon.kill()
    await daemon.started("outbox")
    await until(paused)

    async def published() -> bool:
        return len(await records_of(kafka_bootstrap, topic)) == 1

    await until(published, what="there is something to handle")
    assert (await daemon.status("taker"))["target"] == "paused"
    assert calls() == []
    await daemon.ask("resume", "taker")

    async def handled() -> bool:
        return calls() == ["k"]

    await until(handled, seconds=60)
    assert await daemon.terminate() == 0
    assert postgres_dsn not in daemon.log()


async def test_the_pipelines_of_the_shop_pass_the_check(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    daemon = make_daemon(
        resources.files("shop").joinpath("pipelines.yaml").read_text("utf-8"),
        SHOP_ORDERS_DSN="postgresql://localhost/orders",
        SHOP_ESTABLISHMENT_DSN="postgresql://localhost/establishment",
    )
    code, envelope = daemon.command("check", "-c", str(daemon.config))
    assert (code, envelope["ok"]) == (0, True)
    (tmp_path / "bad.yaml").write_text("pipelines: {a: {consume: {topic: [x]}}}\n", "utf-8")
    code, envelope = daemon.command("check", "-c", str(tmp_path / "bad.yaml"))
    assert (code, envelope["ok"]) == (2, False)
    code, envelope = daemon.command("run", "-c", str(tmp_path / "bad.yaml"))
    assert (code, envelope["error"]["code"]) == (2, "configuration_invalid")

"""The configuration changes under a running daemon, as a ConfigMap does: swapped, broken, good again."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.acceptance.conftest import MakeDaemon
from tests.acceptance.harness import Daemon, committed, produce, until
from tests.conftest import TopicFactory
from tests.mounted_folder import MountedFolder

CONNECTIONS = """
daemon: {{name: reloaded, drain_timeout: 10s}}
connections:
  shop: {{type: postgres, dsn: "{dsn}"}}
  main: {{type: kafka, bootstrap_servers: ["{kafka}"]}}
"""
CONSUMER = """
  {name}:
    consume: {{connection: main, topics: [{topic}], group: "{topic}-{name}", decode: text, session_timeout: 6s, concurrency: {concurrency}}}
    handler: {{type: python, target: "tests.acceptance.functions:accept"}}
    dead_letters: {{chain: [{{type: postgres, connection: shop}}]}}
"""  # fmt: skip


class Reloaded:
    """A daemon on a mounted folder, with records that keep coming."""

    def __init__(self, daemon: Daemon, mount: MountedFolder, connections: str, kafka: str, topics: list[str]) -> None:
        self.daemon, self.mount, self._connections, self._kafka, self._topics = (
            daemon,
            mount,
            connections,
            kafka,
            topics,
        )
        self.sent: Counter[str] = Counter()

    def swap(self, pipelines: str, connections: str = "") -> None:
        self.mount.put(connections=connections or self._connections, pipelines="pipelines:\n" + pipelines)

    async def produce(self) -> None:
        number = 0
        while True:
            for topic in self._topics:
                await produce(self._kafka, topic, key=f"{topic}-{number}", value=b"v")
                self.sent[topic] += 1
            number += 1
            await asyncio.sleep(0.05)

    async def members(self, group: str) -> list[object]:
        """Who is in the group: a new member id for each time that somebody joined."""
        client = AIOKafkaAdminClient(bootstrap_servers=self._kafka)
        await client.start()
        try:
            (answer,) = await client.describe_consumer_groups([group])
        finally:
            await client.close()
        return [member[0] for member in answer.groups[0][-2]]

    async def reload(self) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=self.daemon.url) as client:
            return dict((await client.get("/v1/config", timeout=30)).json()["reload"])

    async def metric(self) -> str:
        async with httpx.AsyncClient(base_url=self.daemon.url) as client:
            page = (await client.get("/metrics", timeout=30)).text
        return next(line for line in page.splitlines() if line.startswith("outboxd_config_last_reload_successful"))


@pytest.mark.fixes("B058")
async def test_a_mounted_folder_is_swapped_broken_and_good_again_and_no_record_is_lost(
    kafka_bootstrap: str,
    postgres_dsn: str,
    topic_factory: TopicFactory,
    make_daemon: MakeDaemon,
    tmp_path: Path,
    calls: Callable[[], list[str]],
) -> None:
    topics = [await topic_factory(partitions=2) for _ in range(2)]
    connections = CONNECTIONS.format(dsn=postgres_dsn, kafka=kafka_bootstrap)
    daemon = make_daemon("", name="reloaded")
    mount = MountedFolder(tmp_path / "mount")
    daemon.config = mount.folder
    story = Reloaded(daemon, mount, connections, kafka_bootstrap, topics)
    steady = CONSUMER.format(name="steady", topic=topics[0], concurrency=4)
    others = [CONSUMER.format(name="changing", topic=topics[1], concurrency=number) for number in (4, 5, 6)]
    resting = CONSUMER.format(name="resting", topic=topics[1], concurrency=4)
    story.swap(steady + others[0] + resting)
    daemon.migrate()
    await daemon.started()
    await daemon.ask("pause", "resting", "--reason", "a test")
    producing = asyncio.create_task(story.produce())
    before, member = await daemon.status("steady"), await story.members(f"{topics[0]}-steady")
    assert member

    # Swapped: one pipeline restarts, a paused one stays paused, and its neighbour does not notice.
    story.swap(steady + others[1] + resting.replace("concurrency: 4", "concurrency: 5"))

    async def is_changed() -> bool:
        return bool((await story.reload())["changed"] == ["changing", "resting"])

    async def runs_again() -> bool:
        status = await daemon.status("changing")
        return (status["state"], status["restarts"]) == ("RUNNING", 1)

    await until(is_changed, what="the change is seen")
    await until(runs_again, what="the changed pipeline runs again")
    assert (await daemon.states())["resting"] == "PAUSED"

    # Broken: nothing changes, and it is told everywhere.
    story.swap(steady + others[2].replace("concurrency", "concurency"))

    async def is_refused() -> bool:
        return not (await story.reload())["is_successful"]

    await until(is_refused, what="the broken files are refused")
    (problem,) = (await story.reload())["problems"]
    assert (problem["code"], problem["file"]) == ("unknown_key", str(mount.folder / "pipelines.yaml"))
    assert (await story.metric()).endswith(" 0.0")
    code, envelope = await asyncio.to_thread(lambda: daemon.command("reload", has_url=True))
    assert (code, envelope["error"]["code"]) == (2, "configuration_invalid")
    assert "did you mean" in envelope["error"]["message"].lower()
    assert await runs_again()

    # Good again: one is gone, one is new; what belongs to the process waits for its restart.
    new = CONSUMER.format(name="new", topic=topics[1], concurrency=1)
    story.swap(steady + others[2] + new, connections + "telemetry: {logs: {level: debug}}\n")

    async def is_gone() -> bool:
        return set(await daemon.states()) == {"steady", "changing", "new"}

    await until(is_gone, what="the removed pipeline is gone")
    state = await story.reload()
    assert (state["added"], state["removed"], state["needs_restart"]) == (
        ["new"],
        ["resting"],
        ["telemetry.logs.level"],
    )
    async with httpx.AsyncClient(base_url=daemon.url) as client:
        assert (await client.get("/v1/pipelines/resting/status")).status_code == 404
        assert 'pipeline="resting"' not in (await client.get("/metrics")).text
    assert (await story.metric()).endswith(" 1.0")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)

    producing.cancel()
    await asyncio.wait({producing})

    async def is_all_committed() -> bool:
        for topic, name in ((topics[0], "steady"), (topics[1], "changing")):
            ends = [await committed(kafka_bootstrap, f"{topic}-{name}", topic, partition) for partition in (0, 1)]
            if sum(max(end, 0) for end in ends) < story.sent[topic]:
                return False
        return True

    await until(is_all_committed, what="every record is committed")
    after = await daemon.status("steady")
    assert (after["since"], after["restarts"]) == (before["since"], 0)
    assert await story.members(f"{topics[0]}-steady") == member
    handled = Counter(calls())
    assert {key for key in handled if key.startswith(topics[0])} == {
        f"{topics[0]}-{number}" for number in range(story.sent[topics[0]])
    }
    assert all(times == 1 for key, times in handled.items() if key.startswith(topics[0]))
    # `new` has read its topic from the start, beside `changing`, which went through two restarts.
    assert {handled[f"{topics[1]}-{number}"] for number in range(story.sent[topics[1]])} == {2}
    assert await daemon.terminate() == 0

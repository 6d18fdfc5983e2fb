"""The consumer as a user sees it: an offset waits for its letter, and a letter finds its way home."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from tests.acceptance.conftest import MakeDaemon
from tests.acceptance.harness import Daemon, committed, produce, records_of, until
from tests.conftest import StackFactory, TopicFactory

CONFIG = """
daemon: {{name: consumer-test, drain_timeout: 20s}}
connections:
  shop: {{type: postgres, dsn: "{dsn}"}}
  main: {{type: kafka, bootstrap_servers: ["{kafka}"]}}
pipelines:
  taker:
    consume: {{connection: main, topics: [{topic}], group: "{topic}-group", decode: text, session_timeout: 10s, commit_every: {commit}}}
    handler: {{type: python, target: "tests.acceptance.functions:{handler}"}}
    errors:
      rules:
        - {{when: {{exception: tests.acceptance.functions.NotWanted}}, then: dead_letter}}
    dead_letters:
      chain:
{chain}
"""
POSTGRES = "        - {type: postgres, connection: shop, deadline: 2s}\n"
TOPIC = '        - {type: kafka, connection: main, topic: "{topic}.dlq", deadline: 2s}\n'


def _spool(folder: Path, size: str = "1MiB") -> str:
    return f'        - {{type: spool, directory: "{folder}", deadline: 2s, max_size: {size}}}\n'


def _configuration(
    *, kafka: str, dsn: str, topic: str, chain: str, handler: str = "refuse", commit: str = "200ms"
) -> str:
    return CONFIG.format(dsn=dsn, kafka=kafka, topic=topic, chain=chain, handler=handler, commit=commit)


async def _produce(kafka: str, topic: str, *keys: str) -> None:
    for key in keys:
        await produce(kafka, topic, key=key, value=b"value")


async def _in_home(dsn: str) -> list[tuple[str, str]]:
    """Key and first sink of each letter in the table."""
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch("select convert_from(message_key, 'UTF8') k, sink from outboxd.letter order by k")
    finally:
        await connection.close()
    return [(row["k"], row["sink"]) for row in rows]


async def _stalled(daemon: Daemon, reason: str) -> None:
    async def is_stalled() -> bool:
        status = await daemon.status("taker")
        return (status.get("state"), status.get("reason")) == ("STALLED", reason)

    await until(is_stalled, what=f"the status says {reason}")


@pytest.mark.fixes("B053")
async def test_killed_between_letter_and_commit_there_is_one_letter(
    kafka_bootstrap: str,
    postgres_dsn: str,
    topic_factory: TopicFactory,
    make_daemon: MakeDaemon,
    calls: Callable[[], list[str]],
) -> None:
    topic = await topic_factory()
    daemon = make_daemon(
        _configuration(kafka=kafka_bootstrap, dsn=postgres_dsn, topic=topic, chain=POSTGRES, commit="10s")
    )
    daemon.migrate()
    await daemon.started()
    await _produce(kafka_bootstrap, topic, "a")

    async def written() -> bool:
        return await _in_home(postgres_dsn) == [("a", "postgres")]

    await until(written)
    daemon.kill()
    assert await committed(kafka_bootstrap, f"{topic}-group", topic) <= 0
    # The dead member is put out of the group after its session; then the record comes again.
    daemon.config.write_text(
        daemon.config.read_text("utf-8").replace("commit_every: 10s", "commit_every: 200ms"), "utf-8"
    )
    daemon.start()

    async def moved_on() -> bool:
        return await committed(kafka_bootstrap, f"{topic}-group", topic) == 1

    await until(moved_on, seconds=60, what="the offset passes the letter")
    assert calls() == ["a", "a"]
    assert await _in_home(postgres_dsn) == [("a", "postgres")]


async def test_while_the_first_sink_is_down_letters_are_in_the_next_one_and_come_home(
    stack_factory: StackFactory, make_daemon: MakeDaemon, tmp_path: Path
) -> None:
    stack = await stack_factory()
    kafka, dsn = stack.bootstrap_servers, await stack.create_database("shop")
    for topic in ("orders", "orders.dlq"):
        await stack.create_topic(topic)
    chain = POSTGRES + TOPIC + _spool(tmp_path / "spool")
    daemon = make_daemon(_configuration(kafka=kafka, dsn=dsn, topic="orders", chain=chain))
    daemon.migrate()
    await daemon.started()
    await stack.postgres.stop()
    await _produce(kafka, "orders", "a", "b")

    async def in_topic() -> bool:
        return sorted(record.key or b"" for record in await records_of(kafka, "orders.dlq")) == [b"a", b"b"]

    await until(in_topic, what="the letters are in the next sink")

    async def moved_on() -> bool:
        return await committed(kafka, "orders-group", "orders") == 2

    await until(moved_on, what="the offset passes the letters")
    await stack.postgres.start()

    async def at_home() -> bool:
        return await _in_home(dsn) == [("a", "kafka"), ("b", "kafka")]

    await until(at_home, seconds=60, what="the drain brings both home")


async def test_killed_between_a_letter_in_the_topic_and_the_commit_the_repeat_has_its_id(
    kafka_bootstrap: str, postgres_dsn: str, topic_factory: TopicFactory, make_daemon: MakeDaemon
) -> None:
    topic, dead_letters = await topic_factory(), await topic_factory()
    chain = TOPIC.replace("{topic}.dlq", dead_letters) + POSTGRES
    configuration = _configuration(kafka=kafka_bootstrap, dsn=postgres_dsn, topic=topic, chain=chain, commit="10s")
    daemon = make_daemon(configuration)
    daemon.migrate()
    await daemon.started()
    await _produce(kafka_bootstrap, topic, "a")

    async def letter_ids() -> list[str]:
        records = await records_of(kafka_bootstrap, dead_letters)
        return [(record.headers.get("outboxd-letter-id") or b"").decode() for record in records]

    await until(letter_ids, what="the letter is in the topic")
    daemon.kill()
    assert await committed(kafka_bootstrap, f"{topic}-group", topic) <= 0
    daemon.config.write_text(configuration.replace("commit_every: 10s", "commit_every: 200ms"), "utf-8")
    daemon.start()

    async def moved_on() -> bool:
        return await committed(kafka_bootstrap, f"{topic}-group", topic) == 1

    await until(moved_on, seconds=60, what="the offset passes the letter")
    # The topic has it twice, under one id; the drain has seen the second one when a third record has come home.
    (letter_id,) = set(await letter_ids())
    assert len(await letter_ids()) == 2
    await _produce(kafka_bootstrap, topic, "b")

    async def at_home() -> bool:
        return ("b", "kafka") in await _in_home(postgres_dsn)

    await until(at_home, seconds=60, what="the drain is through with the topic")
    assert await _in_home(postgres_dsn) == [("a", "kafka"), ("b", "kafka")]
    assert letter_id in {letter["id"] for letter in await daemon.letters("taker")}


async def test_what_the_spool_took_while_nothing_else_could_comes_home(
    stack_factory: StackFactory, make_daemon: MakeDaemon, tmp_path: Path, calls: Callable[[], list[str]]
) -> None:
    stack = await stack_factory()
    kafka, dsn = stack.bootstrap_servers, await stack.create_database("shop")
    await stack.create_topic("orders")
    await stack.create_topic("orders.dlq", settings={"max.message.bytes": "100"})
    chain = TOPIC + POSTGRES + _spool(tmp_path / "spool")
    daemon = make_daemon(_configuration(kafka=kafka, dsn=dsn, topic="orders", chain=chain))
    daemon.migrate()
    await daemon.started()
    await stack.postgres.stop()
    await _produce(kafka, "orders", "a", "b")

    async def moved_on() -> bool:
        return await committed(kafka, "orders-group", "orders") == 2

    await until(moved_on, what="the offset passes the letters in the spool")
    await stack.postgres.start()

    async def at_home() -> bool:
        return await _in_home(dsn) == [("a", "spool"), ("b", "spool")]

    await until(at_home, seconds=60, what="the drain brings both home")
    assert await records_of(kafka, "orders.dlq") == []
    assert calls() == ["a", "b"]


async def test_a_topic_that_refuses_gives_its_letters_to_the_table(
    kafka_bootstrap: str, postgres_dsn: str, topic_factory: TopicFactory, make_daemon: MakeDaemon
) -> None:
    topic = await topic_factory()
    refusing = await topic_factory(settings={"max.message.bytes": "100"})
    chain = TOPIC.replace("{topic}.dlq", refusing) + POSTGRES
    daemon = make_daemon(_configuration(kafka=kafka_bootstrap, dsn=postgres_dsn, topic=topic, chain=chain))
    daemon.migrate()
    await daemon.started()
    await _produce(kafka_bootstrap, topic, "a")

    async def written() -> bool:
        return await _in_home(postgres_dsn) == [("a", "postgres")]

    await until(written, what="the letter is in the table")
    assert await records_of(kafka_bootstrap, refusing) == []


@pytest.mark.fixes("B048")
async def test_while_every_sink_is_down_the_offset_waits_and_the_handler_rests(
    stack_factory: StackFactory, make_daemon: MakeDaemon, tmp_path: Path, calls: Callable[[], list[str]]
) -> None:
    stack = await stack_factory()
    kafka, dsn = stack.bootstrap_servers, await stack.create_database("shop")
    await stack.create_topic("orders")
    await stack.create_topic("orders.dlq", settings={"max.message.bytes": "100"})
    chain = TOPIC + POSTGRES + _spool(tmp_path / "spool", size="1B")
    daemon = make_daemon(_configuration(kafka=kafka, dsn=dsn, topic="orders", chain=chain))
    daemon.migrate()
    await daemon.started()
    await stack.postgres.stop()
    await _produce(kafka, "orders", "a")
    await _stalled(daemon, "chain_exhausted")
    assert calls() == ["a"]
    assert await committed(kafka, "orders-group", "orders") <= 0
    await stack.postgres.start()

    async def moved_on() -> bool:
        return await committed(kafka, "orders-group", "orders") == 1

    await until(moved_on, seconds=60, what="the offset passes once a sink has returned")
    assert await _in_home(dsn) == [("a", "postgres")]
    assert calls() == ["a"]


async def test_sigterm_waits_for_the_handler_and_commits_what_it_did(
    kafka_bootstrap: str,
    postgres_dsn: str,
    topic_factory: TopicFactory,
    make_daemon: MakeDaemon,
    open_gate: Callable[[], None],
    calls: Callable[[], list[str]],
) -> None:
    topic = await topic_factory()
    daemon = make_daemon(
        _configuration(
            kafka=kafka_bootstrap,
            dsn=postgres_dsn,
            topic=topic,
            chain=POSTGRES,
            handler="finish_when_allowed",
            commit="10s",
        )
    )
    daemon.migrate()
    await daemon.started()
    await _produce(kafka_bootstrap, topic, "a")

    async def begun() -> bool:
        return calls() == ["a begun"]

    await until(begun, what="the handler is in the middle of it")
    ending = asyncio.create_task(daemon.terminate())

    async def drains() -> bool:
        return "DRAINING" in (await daemon.states()).values()

    await until(drains, what="the pipeline drains")
    assert not ending.done()
    open_gate()
    assert await ending == 0
    assert calls() == ["a begun", "a finished"]
    assert await committed(kafka_bootstrap, f"{topic}-group", topic) == 1


async def test_a_letter_is_replayed_after_the_fix(
    kafka_bootstrap: str,
    postgres_dsn: str,
    topic_factory: TopicFactory,
    make_daemon: MakeDaemon,
    open_gate: Callable[[], None],
    calls: Callable[[], list[str]],
) -> None:
    topic = await topic_factory()
    daemon = make_daemon(
        _configuration(
            kafka=kafka_bootstrap, dsn=postgres_dsn, topic=topic, chain=POSTGRES, handler="refuse_until_allowed"
        )
    )
    daemon.migrate()
    await daemon.started()
    await _produce(kafka_bootstrap, topic, "a")

    async def written() -> list[dict[str, object]]:
        return await daemon.letters("taker")

    (letter,) = await until(written)

    async def has_status(status: str) -> bool:
        return [item["status"] for item in await daemon.letters("taker")] == [status]

    await daemon.ask("letters", "replay", str(letter["id"]))
    await until(lambda: has_status("FAILED"), what="it failed again: the same letter")
    open_gate()
    await daemon.ask("letters", "replay", str(letter["id"]))
    await until(lambda: has_status("RESOLVED"), what="it is resolved")
    assert calls() == ["a", "a", "a"]
    shown = await daemon.ask("letters", "show", str(letter["id"]))
    assert (shown["status"], shown["replay_count"], shown["attempts"]) == ("RESOLVED", 2, 3)

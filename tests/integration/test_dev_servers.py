"""`outboxd.dev` against the real servers: they start, keep their data, break on demand and leave nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from outboxd.dev import DevServerFailed, DevStack, KafkaServer, PostgresServer
from outboxd.dev.port_lease import PortLease
from outboxd.dev.wire import KafkaWire
from tests.conftest import DatabaseFactory, StackFactory, TopicFactory


def processes_of(folder: Path) -> list[psutil.Process]:
    """Every process whose command line names ``folder``: guards, brokers, postmasters."""
    everything = psutil.process_iter(["cmdline"])
    return [process for process in everything if str(folder) in " ".join(process.info["cmdline"] or [])]


async def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.05)


async def test_a_stack_serves_topics_and_databases(own_stack: DevStack) -> None:
    await own_stack.create_topic("orders.new", partitions=3)
    dsn = await own_stack.create_database("orders")

    assert await KafkaWire(port=own_stack.kafka.port).has_leaders("orders.new")
    with psycopg.connect(dsn) as connection:
        assert connection.info.server_version >= 180000
        connection.execute("CREATE EXTENSION pg_stat_statements")


async def test_asking_for_a_topic_does_not_make_it(kafka_bootstrap: str, topic_factory: TopicFactory) -> None:
    wire = KafkaWire(port=int(kafka_bootstrap.rsplit(":", 1)[1]))
    assert not await wire.has_leaders("never-made")
    assert not await wire.has_leaders("never-made")
    assert await wire.has_leaders(await topic_factory())


async def test_each_test_gets_an_empty_database(database_factory: DatabaseFactory) -> None:
    first, second = database_factory(), database_factory()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE mine ()")
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT to_regclass('mine')").fetchone() == (None,)


async def test_stacks_side_by_side_do_not_meet(stack_factory: StackFactory) -> None:
    first, second = await asyncio.gather(stack_factory(), stack_factory())
    await first.create_topic("only-here")
    await first.create_database("only_here")

    assert not await KafkaWire(port=second.kafka.port).has_leaders("only-here")
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(second.postgres_dsn("only_here"))


async def test_data_and_port_outlive_kill_nine(own_stack: DevStack) -> None:
    await own_stack.create_topic("kept")
    dsn = await own_stack.create_database("kept")
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
    address = own_stack.bootstrap_servers

    for server in (own_stack.kafka, own_stack.postgres):
        await server.kill()
        assert not server.is_running
        await server.start()

    assert own_stack.bootstrap_servers == address
    assert await KafkaWire(port=own_stack.kafka.port).has_leaders("kept")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (1,)


async def test_a_frozen_server_answers_again_after_resume(own_stack: DevStack) -> None:
    dsn = own_stack.postgres_dsn()
    wire = KafkaWire(port=own_stack.kafka.port, deadline=0.5)
    with psycopg.connect(dsn, autocommit=True) as session:
        own_stack.kafka.pause()
        own_stack.postgres.pause()
        assert not await wire.is_serving()
        # A session from before is frozen too, not only the process that takes new ones.
        answer = asyncio.create_task(asyncio.to_thread(session.execute, "SELECT 1"), name="frozen session")
        done, _ = await asyncio.wait([answer], timeout=0.5)
        assert not done

        own_stack.kafka.resume()
        own_stack.postgres.resume()
        assert (await answer).fetchone() == (1,)
        assert await KafkaWire(port=own_stack.kafka.port).is_serving()


async def test_a_frozen_server_can_be_stopped(stack_factory: StackFactory) -> None:
    stack = await stack_factory(kafka=False)
    with psycopg.connect(stack.postgres_dsn()):
        stack.postgres.pause()
        await stack.stop()
    assert processes_of(stack.folder) == []


async def test_a_server_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    server = KafkaServer(tmp_path / "kafka", properties={"num.partitions": "none"})
    with pytest.raises(DevServerFailed, match=r"num\.partitions"):
        await server.start()
    assert processes_of(tmp_path) == []
    await server.close()


async def test_a_folder_serves_one_process_at_a_time(stack_factory: StackFactory) -> None:
    stack = await stack_factory(kafka=False)
    with pytest.raises(DevServerFailed, match=f"in use by process {os.getpid()}") as refused:
        await DevStack(stack.folder, kafka=False).start()
    assert refused.value.suggestion
    assert stack.postgres.is_running


START_AND_WAIT = """
    import asyncio, sys
    from pathlib import Path
    from outboxd.dev import DevStack

    async def main() -> None:
        async with DevStack(Path(sys.argv[1]), kafka="kafka" in sys.argv) as stack:
            if "frozen" in sys.argv:
                stack.kafka.pause()
                stack.postgres.pause()
            print("up", flush=True)
            await asyncio.to_thread(sys.stdin.read)  # until the test ends, or dies

    asyncio.run(main())
"""


def test_a_leased_port_is_nobody_elses_until_it_is_given_back() -> None:
    first = PortLease.acquire()
    other = PortLease.acquire(first.port)
    assert other.port != first.port
    first.release()
    again = PortLease.acquire(first.port)
    assert again.port == first.port
    with closing(socket.create_server(("127.0.0.1", 0))) as stranger:
        taken = stranger.getsockname()[1]
        elsewhere = PortLease.acquire(taken)
        assert elsewhere.port != taken
    for lease in (other, again, elsewhere):
        lease.release()


@contextmanager
def owner_of(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that runs a stack in ``folder``; its servers answer when the block begins."""
    program = [sys.executable, "-c", textwrap.dedent(START_AND_WAIT), str(folder), *arguments]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "up\n"
            yield owner
        finally:
            owner.kill()


@pytest.mark.parametrize("state", ["running", "frozen"])
async def test_nothing_outlives_an_owner_that_is_killed(stack_folder: Path, state: str) -> None:
    with owner_of(stack_folder, "kafka", state) as owner:
        family = psutil.Process(owner.pid).children(recursive=True)
        assert len(family) >= 4  # two guards, a broker, a postmaster; and Postgres's own

        owner.kill()

    await until(
        lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in family)
    )
    assert processes_of(stack_folder) == []
    # Told to stop, not only killed: the guard is what does it where the kernel has no death signal.
    assert "database system is shut down" in (stack_folder / "postgres" / "postgres.log").read_text()


async def test_a_start_after_a_killed_owner_finds_everything(stack_folder: Path) -> None:
    with owner_of(stack_folder, "kafka") as owner:
        ports = json.loads((stack_folder / "kafka" / "ports.json").read_text())
        owner.kill()

    # At once, while the guards may still be stopping the servers.
    async with DevStack(stack_folder) as stack:
        assert stack.kafka.port == ports["port"]
        assert await stack.postgres.execute("SELECT 1") == "1"


async def test_servers_without_a_guard_are_ended_by_the_next_start(stack_folder: Path) -> None:
    with owner_of(stack_folder) as owner:
        pids = json.loads((stack_folder / "postgres" / "postgres.pid").read_text())
        os.kill(pids["guard"], signal.SIGKILL)
        owner.kill()

    async with DevStack(stack_folder, kafka=False) as stack:
        assert await stack.postgres.execute("SELECT 1") == "1"
    assert processes_of(stack_folder) == []


async def test_a_stranger_with_a_recorded_process_id_is_left_alone(stack_folder: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        server = PostgresServer(stack_folder / "postgres")
        server.folder.mkdir(parents=True)
        (server.folder / "postgres.pid").write_text(json.dumps({"guard": stranger.pid, "server": stranger.pid}))
        await server.start()
        await server.remove()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


async def test_a_password_guards_the_database(stack_factory: StackFactory) -> None:
    stack = await stack_factory(kafka=False)
    wrong = stack.postgres_dsn().replace(stack.postgres.password, "guessed")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)
    mode = (stack.postgres.folder / "password").stat().st_mode
    assert mode & 0o077 == 0
    command_lines = [" ".join(process.cmdline()) for process in processes_of(stack.folder)]
    assert not any(stack.postgres.password in line for line in command_lines)


async def test_an_interrupted_preparation_is_done_again(stack_folder: Path) -> None:
    for half in ("kafka/data", "postgres/initdb-half"):
        (stack_folder / half).mkdir(parents=True)
        (stack_folder / half / "PG_VERSION").write_text("18")
    async with DevStack(stack_folder) as stack:
        assert await stack.postgres.execute("SELECT 1") == "1"
    assert not (stack_folder / "postgres" / "initdb-half").exists()


async def test_a_topic_that_exists_is_left_alone_when_that_is_fine(own_stack: DevStack) -> None:
    await own_stack.create_topic("t", partitions=2)
    with pytest.raises(DevServerFailed, match="exists"):
        await own_stack.create_topic("t")
    await own_stack.create_topic("t", partitions=5, exist_ok=True)

"""A daemon in a process of its own: its life, what it is told and what it leaves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from outboxd.errors import DevServerFailed
from outboxd.testing.chaos import Daemon, NotSeen, kill
from tests.chaos import configuration
from tests.chaos.conftest import MakeDaemon

SECRET = "a-secret-of-the-handler"
NOBODY = "127.0.0.1:1"


@pytest.fixture
def lonely(make_daemon: MakeDaemon) -> Daemon:
    """One whose servers are not there."""
    text = configuration.daemon(
        "lonely", configuration.relay(), bootstrap_servers=NOBODY, dsn=f"postgresql://nobody@{NOBODY}/nothing"
    )
    return make_daemon(text, "lonely", CHAOS_SECRET=SECRET)


async def test_it_lives_at_one_address_and_says_how_it_is_and_shows_its_environment_to_nobody(lonely: Daemon) -> None:
    url = lonely.url
    await lonely.start()
    assert await lonely.until_stalled("outbox", "database_unreachable", within=timedelta(seconds=60))
    first = psutil.Process(lonely.pid)
    family = [first, *first.parents()]
    assert first.environ()["CHAOS_SECRET"] == SECRET
    assert not any(SECRET in argument for each in family for argument in each.cmdline())
    await lonely.kill()
    assert not lonely.is_running
    assert not first.is_running()
    assert await lonely.statuses() == []
    await lonely.start()
    assert lonely.url == url
    assert await lonely.until_stalled("outbox", "database_unreachable", within=timedelta(seconds=60))
    with pytest.raises(NotSeen, match=r"until the pipelines of lonely run; lonely says .*database_unreachable"):
        await lonely.until_running(within=timedelta(seconds=1))
    await lonely.stop()
    assert lonely.exit_status == 0


async def test_one_that_ended_by_itself_is_found_by_the_next_fault(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, "pipelines: nonsense", name="broken")
    try:
        await daemon.start()
        with pytest.raises(DevServerFailed, match="broken has ended: "):
            await daemon.until_running()
        with pytest.raises(DevServerFailed, match="broken had ended by itself"):
            await kill(daemon).begin()
    finally:
        await daemon.close()

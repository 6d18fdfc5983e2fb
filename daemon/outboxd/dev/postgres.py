"""A real Postgres on this computer: `PostgresServer`."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Mapping
from pathlib import Path

from outboxd.dev.postgres_home import PostgresHome
from outboxd.dev.server import Command, Server
from outboxd.dev.tool import run_tool
from outboxd.dev.whole_file import write_whole

__all__ = ["PostgresServer"]

_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_preload_libraries": "pg_stat_statements",
    "max_connections": "300",
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # Faster, and safe against kill -9 of the server: what it wrote is in the kernel. A power cut may cost the data.
    "fsync": "off",
    "full_page_writes": "off",
}


class PostgresServer(Server):
    """Postgres with pg_stat_statements, on 127.0.0.1 only, superuser `postgres` with a password of its own.

    Started by root it runs as the user `nobody`, since Postgres refuses root; where that user cannot reach
    ``folder``, the data lies in the system's folder for temporary files instead (`folder` tells). ``settings`` are
    added to those of the server or replace them.
    """

    name = "postgres"
    stop_signal = signal.SIGINT  # the fast shutdown: sessions are ended, not waited for

    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None) -> None:
        self._home = PostgresHome.of(folder)
        super().__init__(self._home.folder)
        self._settings = _SETTINGS | dict(settings or {})

    @property
    def password(self) -> str:
        """The superuser's password; made at first use, kept in the folder, readable by us only."""
        path = self.folder / "password"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            write_whole(path, secrets.token_urlsafe(12))
        return path.read_text()

    def dsn(self, database: str = "postgres") -> str:
        """The superuser's address of a database, password included."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/{database}"

    async def create_database(self, name: str, *, template: str | None = None) -> str:
        """Create a database, as a copy of ``template`` when given, and return its DSN."""
        suffix = f" TEMPLATE {_quoted(template)}" if template else ""
        await self.execute(f"CREATE DATABASE {_quoted(name)}{suffix}")
        return self.dsn(name)

    async def drop_database(self, name: str) -> None:
        """Drop a database when there is one; sessions in it are ended."""
        await self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    async def execute(self, statement: str, *, database: str = "postgres") -> str:
        """Run a statement as the superuser and return its rows as psql prints them (unaligned, without headings).

        Raises DevServerFailed with psql's message.
        """
        arguments = ["--no-psqlrc", "--quiet", "--no-align", "--tuples-only", "--set=ON_ERROR_STOP=1"]
        address = ["--host=127.0.0.1", f"--port={self.port}", "--username=postgres", f"--dbname={database}"]
        return await run_tool(
            [str(self._home.binary("psql")), *arguments, *address, f"--command={statement}"],
            folder=self.folder,
            environment={"PGPASSWORD": self.password, "PGCONNECT_TIMEOUT": "10"},
        )

    # -- what a Server is made of --------------------------------------------------------------------------------------

    async def _prepare(self) -> Command:
        await asyncio.to_thread(self._home.prepare)
        data = self._home.data
        if not data.exists():
            await self._initialise()
        # It names a process of an earlier start that is gone (see end_leftovers); its number may be a stranger's now.
        (data / "postmaster.pid").unlink(missing_ok=True)
        settings = self._settings | {"port": str(self.port)}
        return Command(
            argv=[
                str(self._home.binary("postgres")),
                "-D",
                str(data),
                *(f"--{name}={value}" for name, value in settings.items()),
            ],
            user=self._home.user,
            group=self._home.group,
        )

    async def _initialise(self) -> None:
        # Beside its place first: an interrupted initdb leaves no half of a cluster behind.
        with self._home.new_data() as data, self._home.handed_over(self.password) as password_file:
            await run_tool(
                [
                    str(self._home.binary("initdb")),
                    f"--pgdata={data}",
                    "--username=postgres",
                    f"--pwfile={password_file}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    "--no-sync",
                    "--no-instructions",
                ],
                folder=self.folder,
                user=self._home.user,
                group=self._home.group,
            )

    async def _answers(self) -> bool:
        # The postmaster itself writes here when it begins to take sessions (what `pg_ctl --wait` reads).
        try:
            lines = (self._home.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(self.pid) and lines[7].strip() == "ready"


def _quoted(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'

"""A PostgreSQL server of a test's own, where its programs are installed."""

import contextlib
import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psycopg

from template_api.library.models import SCHEMA_VERSION, Table
from tests.support.ports import free_port

POSTGRES_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def postgres_program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([*map(str, POSTGRES_FOLDERS), os.environ.get("PATH", "")]))


POSTGRES_MISSING = postgres_program("initdb") is None
_FILLED: Final = [table.name for table in reversed(Table.metadata.sorted_tables) if table.name != "library"]
_EMPTY: Final = (
    f"{''.join(f'DELETE FROM {table};' for table in _FILLED)}"
    "UPDATE library SET version = 1, is_filling = false, synonyms = NULL"
)
_SHAPE: Final = """SELECT relname, attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid, library
WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r' AND attnum > 0
AND schema_version = %(schema_version)s"""
_MADE: Final = sorted((table, column.name) for table, made in Table.metadata.tables.items() for column in made.columns)


class Postgres:
    """A PostgreSQL server of our own in a temporary folder, which may be stopped and started.

    Args:
        initialised: A folder for what `initdb` makes; the first server makes it, all copy it.
    """

    def __init__(self, initialised: Path) -> None:
        # PostgreSQL refuses to run as root.
        name = "postgres" if _has_account("postgres") else "nobody"
        self._account = pwd.getpwnam(name) if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="template-api-postgres-"))
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        self.port = free_port()
        self._emptied: list[str] = []
        with initialised.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not initialised.exists():
                options = ("-A", "trust", "-U", "library", "-E", "UTF8", "--locale=C", "--no-sync")
                self._run("initdb", "-D", self._data, *options)
                subprocess.run(["cp", "-a", self._data, initialised], check=True)
                return
        subprocess.run(["cp", "-a", initialised, self._data], check=True)

    def start(self) -> None:
        options = f"-p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        self._run("pg_ctl", "-D", self._data, "-o", options, "-l", str(self.folder / "log"), "-w", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")

    def signal(self, number: int) -> None:
        """Send a signal to the server and to each of its processes."""
        server = int(Path(self._data, "postmaster.pid").read_text().splitlines()[0])
        os.kill(server, number)  # first, so that a server which is stopped starts no process meanwhile
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in map(int, children):
            with contextlib.suppress(ProcessLookupError):  # a child may end meanwhile
                os.kill(pid, number)

    def new_database(self) -> str:
        """Return the URL of an empty library: a user's own schema, since a database costs 300 files and 0.1 s."""
        name = f"library_{uuid.uuid4().hex}"
        address = f"host=127.0.0.1 port={self.port} user=library dbname=postgres"
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {name} LOGIN")
            connection.execute(f"CREATE SCHEMA AUTHORIZATION {name}")
        return f"postgresql+psycopg://{name}@127.0.0.1:{self.port}/postgres"

    @contextlib.contextmanager
    def library(self) -> Iterator[str]:
        """Yield the URL of an empty library, made for the block, or emptied after another one: tables cost 50 ms."""
        url = self._emptied.pop() if self._emptied else self.new_database()
        yield url
        with contextlib.suppress(psycopg.Error):  # it has no tables, or an open transaction
            with psycopg.connect(url.replace("+psycopg", ""), options="-c lock_timeout=1s") as connection:
                connection.execute(_EMPTY)
                shape = connection.execute(_SHAPE, {"schema_version": SCHEMA_VERSION}).fetchall()
            if sorted(shape) == _MADE:
                self._emptied.append(url)

    def remove(self) -> None:
        shutil.rmtree(self.folder)

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    def _run(self, program: str, *arguments: str) -> None:
        command = [postgres_program(program) or program, *arguments]
        account = {} if self._account is None else {"user": self._account.pw_uid, "group": self._account.pw_gid}
        done = subprocess.run(  # type: ignore[call-overload]  # user and group come together or not at all
            command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=180, **account
        )
        assert done.returncode == 0, f"{program} failed with status {done.returncode}, see {self.folder}"


def _has_account(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True

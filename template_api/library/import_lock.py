"""One import at a time for each library: the next one waits. Blocks; the lock ends with the process that holds it."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

_KEY = 0x7E3A1A7F  # any constant but that of the lock under which tables are made
_PAUSE_SECONDS = 0.1


@contextmanager
def import_lock(engine: Engine, on_wait: Callable[[], None]) -> Iterator[None]:
    """Wait until no other import runs, then keep others waiting.

    Args:
        engine: the library's database.
        on_wait: called once when there is another import to wait for.
    """
    lock = _sqlite_lock if engine.dialect.name == "sqlite" else _postgresql_lock
    with lock(engine, on_wait):
        yield


@contextmanager
def _sqlite_lock(engine: Engine, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of an empty database beside the library's: its own is needed for each template in turn."""
    file = Path(f"{engine.url.database}-import")
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:

        def try_lock() -> bool:
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as exc:
                if exc.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
                return False
            return True

        _wait(try_lock, on_wait)
        yield


@contextmanager
def _postgresql_lock(engine: Engine, on_wait: Callable[[], None]) -> Iterator[None]:
    with engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        _wait(lambda: bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(_KEY))).scalar()), on_wait)
        try:
            yield
        finally:
            connection.invalidate()  # the lock is the connection's, which shall not return to the pool with it


def _wait(try_lock: Callable[[], bool], on_wait: Callable[[], None]) -> None:
    if try_lock():
        return
    on_wait()
    while not try_lock():
        time.sleep(_PAUSE_SECONDS)

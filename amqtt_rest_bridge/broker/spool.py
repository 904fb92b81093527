"""The spool of lossless routes: one SQLite file that holds every accepted message until its call has ended.

`keep` is the one thing of ours that writes to disk on the broker's loop: it has to be done before the publisher's
PUBACK. In WAL mode with `synchronous=NORMAL` a commit is a write without a flush, which a killed process survives and a
power cut may not. Removals are gathered and committed together; one that a kill prevents makes the call run again, with
the same key. Flushing to disk happens at checkpoints, on another thread: at SQLite's own, every 1,000 pages, the loop
waited up to 15 ms and each commit took twice as long on average (53 us, not 23; a table without an index of keys).
"""

import contextlib
import fcntl
import itertools
import logging
import re
import sqlite3
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

from amqtt_rest_bridge.broker.spool_rows import COLUMNS, Kept, Unreadable, row, rows
from amqtt_rest_bridge.errors import BridgeError, ConfigurationError
from amqtt_rest_bridge.model import Message

log = logging.getLogger(__name__)

SCHEMA_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE calls (
    id INTEGER PRIMARY KEY,  -- in order of arrival: each commit writes one page, an index of keys would add others
    key TEXT NOT NULL,
    route TEXT NOT NULL,
    event TEXT NOT NULL,
    topic TEXT NOT NULL,
    payload BLOB NOT NULL,
    timestamp REAL NOT NULL,
    hops INTEGER NOT NULL,
    client_id TEXT,          -- who published, while the ACL has not decided; NULL afterwards
    username TEXT
) STRICT
"""
_UPGRADES: Final[dict[int, str]] = {0: _SCHEMA}  # from that version to the next
_INSERT: Final = f"INSERT INTO calls ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # constants
_ROW_FAULT: Final = re.compile(r" value in calls\.\w+$")  # of SQLite's check: costs that row alone, see `spool_rows`
_LARGE_LOG: Final = 64 << 20  # bytes
_BUSY_SECONDS: Final = 0.1  # somebody else's transaction may keep the broker's loop this long at most


class SpoolFull(BridgeError):  # noqa: N818  # a state of the disk
    """The disk did not take a message."""


class Spool:
    """The open file. Every method blocks for one small disk operation at most.

    Raises:
        ConfigurationError: The file is damaged, cannot be written, is used by another broker, or comes from a newer
            version of this package.
    """

    def __init__(self, path: Path) -> None:
        self._ids: dict[str, int] = {}  # of the calls on disk, by key
        self._forgotten: list[str] = []
        self._permitted: dict[str, None] = {}
        self._failing = False
        self._replayed = 0  # the last row that `left_over` has yielded
        # Keys are UUIDs whose last part counts: a random one for each message took a tenth of `keep`.
        self._run = str(uuid.uuid4())[:24]
        self._number = itertools.count()
        self._path = path
        self._lock = _lock(path)
        try:
            # Made by whoever makes the broker, used by its loop: one thread at a time.
            self._connection = sqlite3.connect(
                path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            self._lock.close()
            raise ConfigurationError(f"cannot open the spool {path}: {error}") from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self._close()
            hint = "move the file away to start with an empty spool"
            raise ConfigurationError(f"cannot use the spool {path}: {error}; {hint}") from error
        except ConfigurationError:
            self._close()
            raise

    def keep(self, route: str, event: str, message: Message, hops: int, client: tuple[str, str | None] | None) -> str:
        """Write a call to disk and give its key.

        `client` is the publisher's client id and user name while the ACL has not decided.

        Raises:
            SpoolFull: The disk did not take it.
        """
        key = f"{self._run}{next(self._number):012x}"
        client_id, username = client or (None, None)
        row = (key, route, event, message.topic, message.payload, message.timestamp, hops, client_id, username)
        try:
            self._cursor.execute(_INSERT, row)
        except sqlite3.Error as error:
            raise SpoolFull(str(error)) from error
        self._ids[key] = self._cursor.lastrowid or 0
        return key

    def permit(self, key: str) -> None:
        """Note that the ACL let a call pass, with the next `flush`; after a kill before that it is asked again."""
        self._permitted[key] = None

    def forget(self, key: str) -> None:
        """Remove a call that has ended, with the next `flush`."""
        self._forgotten.append(key)

    def flush(self) -> None:
        """Write down, in one commit, what was permitted and forgotten."""
        if not self._forgotten and not self._permitted:
            return
        gone = [(self._ids[key],) for key in self._forgotten if key in self._ids]
        forgotten = set(self._forgotten)
        passed = [(self._ids[key],) for key in self._permitted if key not in forgotten and key in self._ids]
        if self._write(gone, passed):
            for key in self._forgotten:
                self._ids.pop(key, None)
            self._forgotten.clear()
            self._permitted.clear()

    def checkpoint(self) -> None:
        """Move what was committed from the write-ahead log into the database file; blocks while the disk works.

        Runs on a thread of its own, with a connection of its own, so that the loop's commits never wait for the disk.
        """
        with (
            contextlib.suppress(sqlite3.Error),
            closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as connection,
        ):
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def shorten(self) -> None:
        """Begin the write-ahead log anew if it has grown large although it was checkpointed all the time."""
        with contextlib.suppress(OSError, sqlite3.Error):
            if Path(f"{self._path}-wal").stat().st_size > _LARGE_LOG:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def left_over(self) -> Iterator[Kept | Unreadable]:
        """Yield each call that an earlier run left on disk once, the oldest first; a second iterator goes on there."""
        for number, kept in rows(self._connection, self._replayed, self._left_over):
            self._replayed = number
            if isinstance(kept, Kept):
                self._ids[kept.key] = number
            yield kept

    def find(self, keys: Iterable[str]) -> Iterator[Kept | Unreadable]:
        """Yield the calls with these keys, as far as they are on disk; what was permitted since is permitted."""
        for key in keys:
            for _, kept in row(self._connection, self._ids.get(key, 0)):
                yield replace(kept, client_id=None) if isinstance(kept, Kept) and key in self._permitted else kept

    def close(self) -> None:
        """Write what is left to write and close the file."""
        self.flush()
        self._close()

    def _close(self) -> None:
        self._connection.close()
        self._lock.close()

    def _prepare(self) -> None:
        connection = self._connection
        connection.text_factory = bytes  # of what is read; see `rows`
        connection.execute("PRAGMA page_size = 1024")  # of a new file; each commit writes a page
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # see `checkpoint`
        check = [line.decode() for (line,) in connection.execute("PRAGMA quick_check").fetchall()]
        damage = [line for line in check if line != "ok" and _ROW_FAULT.search(line) is None]
        if damage:
            raise sqlite3.DatabaseError(f"the file is damaged ({damage[0]})")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"cannot use the spool {self._path}: a newer version of amqtt-rest-bridge wrote it (format {version}, "
                f"this one knows {SCHEMA_VERSION}); install that version again, or move the file away"
            )
        connection.execute("BEGIN IMMEDIATE")  # finds a file that cannot be written
        for step in range(version, SCHEMA_VERSION):
            connection.execute(_UPGRADES[step])
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        connection.execute("COMMIT")
        self._cursor = connection.cursor()
        self._left_over: int = connection.execute("SELECT coalesce(max(id), 0) FROM calls").fetchone()[0]

    def _write(self, gone: list[tuple[int]], passed: list[tuple[int]]) -> bool:
        try:
            self._connection.execute("BEGIN")
            self._connection.executemany("DELETE FROM calls WHERE id = ?", gone)
            self._connection.executemany("UPDATE calls SET client_id = NULL, username = NULL WHERE id = ?", passed)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if not self._failing:  # said once, since it is tried again all the time
                log.error("the spool %s could not be written: %s", self._path, error)  # noqa: TRY400  # the fact is enough
            self._failing = True
            return False
        if self._failing:
            log.warning("the spool %s can be written again", self._path)
        self._failing = False
        return True


def _lock(path: Path) -> BinaryIO:
    """Keep other brokers away, which would send every message a second time, until the file is closed."""
    try:
        file = Path(f"{path}-lock").open("ab")  # noqa: SIM115  # stays open as long as the spool
    except OSError as error:
        raise ConfigurationError(f"cannot open the spool {path}: {error}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise ConfigurationError(f"cannot use the spool {path}: another broker uses it; give each its own") from None
    return file

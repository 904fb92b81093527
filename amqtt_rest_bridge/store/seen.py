"""The keys of DEDUPE_KEY that were seen, each with the answer to its request: a file beside the spool.

Without a spool they are in memory, in SQLite too: a million keys take 70 MB. The stages of DEDUPE_KEY ask it on the
bridge's loop.

The file survives a killed process. Nothing waits until the disk has it, so a power cut may lose the file: then its keys
count as not seen. A damaged file is logged and replaced by an empty one. Keys that cannot be written, as on a full
disk, are kept in memory.
"""

import contextlib
import logging
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.system import open_private

log = logging.getLogger(__name__)

MOST_KEYS: Final = 1_000_000
"""One more key replaces the one that ends first."""
MOST_BYTES: Final = 64 << 20
"""Bytes of all answers; beyond them a key is kept with an empty answer."""
_QUIET_SECONDS: Final = 60.0
_ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)  # the second for an error whose text quotes a damaged schema
_DAMAGED: Final = "a row is not as it was written"
_TABLE: Final = """
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = OFF;
    CREATE TABLE IF NOT EXISTS seen (key BLOB PRIMARY KEY, until REAL NOT NULL, answer BLOB NOT NULL) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS ends ON seen (until);
"""


class SeenKeys:
    """Keys and answers. Each method blocks for one small write at most.

    An existing file is opened by the constructor, since counting a million keys takes 0.1 s; a new one is made with the
    first key. Its time is Unix time at the start, and advances with the monotonic clock from then on.

    Args:
        path: Of the file, None for memory.
        wall: Returns Unix time; asked once.
        monotonic: Returns the seconds of a clock that is never set.
        most: How many keys are kept.
        most_bytes: Bytes of answers that are kept.
    """

    def __init__(
        self,
        path: Path | None,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        most: int = MOST_KEYS,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._path = path
        self._monotonic = monotonic
        self._offset = wall() - monotonic()
        self._most, self._most_bytes = most, most_bytes
        self._count = self._bytes = 0
        self._database: sqlite3.Connection | None = None
        self._unwritten: SeenKeys | None = None
        self._failed_at: float | None = None  # the last time
        if path is not None and path.exists():
            self.answer(b"")

    def answer(self, key: bytes) -> bytes | None:
        """Return the answer of a key; None if it was not seen, or too long ago."""
        try:
            found = self._open().execute("SELECT until, answer FROM seen WHERE key = ?", (key,)).fetchone()
            if found is not None and not (isinstance(found[0], float) and isinstance(found[1], bytes)):
                raise sqlite3.DatabaseError(_DAMAGED)
        except _ERRORS as error:
            self._failed(error)
            found = None
        if found is not None and found[0] > self._now():
            return bytes(found[1])
        return None if self._unwritten is None else self._unwritten.answer(key)

    def keep(self, key: bytes, seconds: float, answer: bytes) -> None:
        """Keep a key for so many seconds, and forget two whose time is over."""
        now = self._now()
        try:
            database = self._open()
            self._forget(database, "WHERE key = ?", key)
            self._forget(database, "WHERE until < ? ORDER BY until", now)
            kept = answer if self._bytes + len(answer) <= self._most_bytes else b""
            database.execute("INSERT INTO seen VALUES (?, ?, ?)", (key, now + seconds, kept))
            self._count, self._bytes = self._count + 1, self._bytes + len(kept)
            if self._count > self._most:
                self._forget(database, "ORDER BY until")
        except _ERRORS as error:
            self._failed(error)
            if self._unwritten is not None:
                self._unwritten.keep(key, seconds, answer)
        else:
            if self._failed_at is not None and now - self._failed_at > _QUIET_SECONDS:
                self._failed_at = None
                log.warning("keys of DEDUPE_KEY are kept in %s again", self._path or "memory")

    def close(self) -> None:
        """Close the file."""
        self._close()
        if self._unwritten is not None:
            self._unwritten.close()

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _now(self) -> float:
        return self._offset + self._monotonic()

    def _open(self) -> sqlite3.Connection:
        """Return the open file; open it, and make its table, if it is not open."""
        if self._database is None:
            name = ":memory:" if self._path is None else str(self._path)
            if self._path is not None:
                with contextlib.suppress(OSError):  # SQLite reports it
                    os.close(open_private(self._path))
            database = sqlite3.connect(name, isolation_level=None, check_same_thread=False)
            database.text_factory = bytearray  # there are no texts but in a damaged row
            try:
                database.executescript(_TABLE)
                counts = "SELECT count(*), coalesce(sum(length(answer)), 0) FROM seen"
                self._count, self._bytes = database.execute(counts).fetchone()
            except _ERRORS:
                database.close()
                raise
            self._database = database
        return self._database

    def _forget(self, database: sqlite3.Connection, which: str, *values: object) -> None:
        """Remove the first two of these keys."""
        first = f"SELECT key, coalesce(length(answer), 0) FROM seen {which} LIMIT 2"  # noqa: S608  # constants
        for key, size in database.execute(first, values).fetchall():
            if not isinstance(key, bytes):
                raise sqlite3.DatabaseError(_DAMAGED)
            database.execute("DELETE FROM seen WHERE key = ?", (key,))
            self._count, self._bytes = self._count - 1, self._bytes - size

    def _failed(self, error: Exception) -> None:
        """Go on with an empty file where this one is damaged, and in memory with keys that cannot be written.

        It is logged once, until there has been no failure for a minute.
        """
        is_of_disk = isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR
        if self._failed_at is None:
            if self._path is None:
                log.error("keys of DEDUPE_KEY cannot be kept in memory: %s", error)
            elif is_of_disk:
                log.error("keys of DEDUPE_KEY are kept in memory only, not in %s: %s", self._path, error)
            else:
                log.error("keys of DEDUPE_KEY are forgotten, %s is damaged: %s", self._path, error)
        self._failed_at = self._now()
        if self._path is not None and self._unwritten is None:
            self._unwritten = SeenKeys(None, self._now, self._monotonic, self._most, self._most_bytes)
        if self._path is not None and not is_of_disk:
            self._close()
            with contextlib.suppress(OSError):
                for suffix in ("", "-wal", "-shm"):
                    Path(f"{self._path}{suffix}").unlink(missing_ok=True)

"""The spool of lossless routes: one SQLite file that holds every accepted message until its call has ended.

`broker/lossless` calls it on the broker's loop. A row is a call: a message for one event.

1. `keep` writes the row, before the publisher gets its PUBACK. In WAL mode with `synchronous=NORMAL` a commit is a
   write that is not forced to the disk: it survives a killed process, and may be lost in a power cut.
2. `permit` notes that the ACL allows the publication, `forget` that the call has ended. `flush` writes many of these in
   one commit, 10 ms later. If a kill prevents that, the ACL is asked again, or the call runs again with the same key.
3. `checkpoint` moves commits from the log into the file, on another thread: on the loop it would block for up to 15 ms.
   `finish_checkpoint` follows on the loop.

At the start `left_over` returns the rows of an earlier run. There is no index of keys, since it would add pages to each
commit.

| file beside it | what for |
|---|---|
| `-lock` | keeps other brokers away from this name |
| `-reserve` | allocated blocks, released when the disk is full |
| `-salvaged` | a salvage that was interrupted between two renames |
| `-wal`, `-shm` | SQLite's |
"""

import contextlib
import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store.disk_space import DiskSpace, Reserve, size_on_disk
from amqtt_rest_bridge.store.keys import BatchNumbers, CallKeys
from amqtt_rest_bridge.store.lock import SpoolLock
from amqtt_rest_bridge.store.rows import INSERT, SCHEMA_VERSION, UPGRADES, Kept, Unreadable, foreign_content, row, rows
from amqtt_rest_bridge.store.salvage import salvage
from amqtt_rest_bridge.system import is_lack_of_room, sqlite_code

log = logging.getLogger(__name__)

_ROW_FAULT: Final = re.compile(r" value in calls\.\w+$")  # in SQLite's check: the other rows can be read, see `rows`
_REPAIRS: Final = 4  # tries to open a file: as it is, with the room of the reserve, salvaged, once more
_REMOVALS_ON_FULL_DISK: Final = 10  # in one commit
# A commit of `flush` takes rows until their costs reach `_MOST_FLUSHED`, so that it blocks for some milliseconds. The
# cost of a removal is about the bytes of the row, that of a permission eight times as much: SQLite writes the whole row
# again. A thousand permissions of 200 KB took 0.8 s, four thousand removals 0.4 s.
_MOST_FLUSHED: Final = 4 << 20
_ROW_COST: Final = 2048  # of a row, beside its payload
_PERMISSION_FACTOR: Final = 8
_LARGE: Final = 16 << 10  # bytes; the sizes of smaller payloads do not matter
_SQLITE_BUSY, _SQLITE_READONLY, _SQLITE_CORRUPT = 5, 8, 11
_MAKE_ROOM: Final = "make room on its disk, then start again; what the spool holds is kept"
_BUSY_SECONDS: Final = 0.1  # another program's transaction may block the broker's loop this long at most


class SpoolFullError(OSError):
    """The spool did not take a call; the message says why."""


class Spool:
    """The open file. `left_over` and `close` block until all is done, other methods for one small disk operation.

    Args:
        path: The file; SQLite's other files are beside it.
        large_log: A write-ahead log of more bytes is restarted at a checkpoint.

    Raises:
        ConfigurationError: The file is damaged, cannot be written, is used by another broker, or comes from a newer
            version of this package.
    """

    def __init__(self, path: Path, large_log: int = 64 << 20) -> None:
        self._large_log = large_log
        self._ids: dict[str, int] = {}  # of the calls on disk, by key
        self._large: dict[str, int] = {}  # bytes of large payloads, by key
        self._forgotten: dict[str, None] = {}  # keys of rows that `flush` removes
        self._permitted: dict[str, None] = {}  # keys of rows in which `flush` notes that the ACL allows them
        self._has_failed = False  # whether the last `flush` has
        self._lacks_room = False  # for permissions: they are tried again after a removal or a checkpoint
        self.trouble: str | None = None
        """Why the last write failed; None if it did not, or if `finish_checkpoint` found that writing works again."""
        self.refusing: str | None = None
        """Why messages are refused: from the first refusal to the first message that is kept again."""
        self._is_checkpointed = True  # whether the last checkpoint has moved all commits
        self._keys = CallKeys()
        self._path = path.resolve()  # SQLite's other files lie beside the file itself, not beside a link
        with contextlib.ExitStack() as opened:
            self._lock = SpoolLock(self._path)
            opened.callback(self._lock.close)
            try:
                self._reserve = Reserve(Path(f"{self._path}-reserve"))
            except OSError as error:
                raise ConfigurationError(f"cannot open the spool {path}: {error}; {_MAKE_ROOM}") from error
            opened.callback(self._reserve.close)
            try:
                self._open()
            except (sqlite3.Error, OSError) as error:
                raise ConfigurationError(f"cannot use the spool {path}: {error}; {_hint(error)}") from error
            opened.pop_all()

    # The file is opened.

    def _open(self) -> None:
        """Open the file. On a full disk release the reserve, salvage a damaged file, and try again."""
        for _ in range(_REPAIRS):
            # Opened where the broker is constructed, used by its loop: one thread at a time.
            self._connection = sqlite3.connect(
                self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except sqlite3.Error as error:
                self._connection.close()
                if is_lack_of_room(error) and self._reserve.size:
                    self._reserve.trim(0)
                elif isinstance(error, _DamagedError) or sqlite_code(error) == _SQLITE_CORRUPT:
                    salvage(self._path, str(error))
                    self._lock.renew()
                else:
                    raise
            except ConfigurationError:
                self._connection.close()
                raise
            else:
                return
        raise sqlite3.OperationalError("it could not be repaired")

    def _prepare(self) -> None:
        """Check the opened file, and make or upgrade its table.

        Raises:
            ConfigurationError: It belongs to another program, or to a newer version of this one.
            sqlite3.Error: It is damaged, or cannot be written.
        """
        connection = self._connection
        connection.text_factory = bytes  # of what is read; see `rows`
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        content = foreign_content(connection, version)
        if content is not None:
            raise ConfigurationError(
                f"cannot use the spool {self._path}: it is a database of another program ({content}); name another "
                "file. It is left as it is"
            )
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"cannot use the spool {self._path}: a newer version of amqtt-rest-bridge wrote it (format {version}, "
                f"this one supports up to {SCHEMA_VERSION}); install that version again, it sends what the file holds"
            )
        connection.execute("PRAGMA page_size = 1024")  # of a new file; each commit writes a page
        # Some builds have this on: then a removal would write as much as the message.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # see `checkpoint`
        check = [line.decode() for (line,) in connection.execute("PRAGMA quick_check").fetchall()]
        damage = [line for line in check if line != "ok" and _ROW_FAULT.search(line) is None]
        if damage:
            raise _DamagedError(" ".join(damage[0].split()))
        connection.execute("BEGIN IMMEDIATE")  # finds a file that cannot be written, and needs no room on the disk
        for step in range(version, SCHEMA_VERSION):
            connection.execute(UPGRADES[step])
            connection.execute(f"PRAGMA user_version = {step + 1}")
        connection.execute("COMMIT")
        self._cursor = connection.cursor()
        self._disk = DiskSpace(self._path, self._reserve, connection)

    def left_over(self) -> Iterator[Kept | Unreadable]:
        """Yield each call that an earlier run left on disk, the oldest first. Call it before the first `keep`."""
        last: int = self._connection.execute("SELECT coalesce(max(id), 0) FROM calls").fetchone()[0]
        for number, kept in rows(self._connection, last):
            if isinstance(kept, Kept):
                self._note_row(kept.key, number, kept.message)
            yield kept

    # Calls are written, permitted and removed.

    def keep(
        self,
        route: str,
        event: str,
        message: Message,
        hops: int,
        client: tuple[str, str | None] | None,
        batch: BatchNumbers | None = None,
    ) -> str:
        """Write a call to disk and return its key.

        `client` is the publisher's client id and user name if the ACL is still to be asked, None without an ACL.
        `batch` says which calls become one request, for an event with BATCH_SIZE.

        Raises:
            SpoolFullError: The disk did not take it.
        """
        key = self._keys.next(batch, message.timestamp)
        client_id, username = client or (None, None)
        row = (key, route, event, message.topic, message.payload, message.timestamp, hops, client_id, username)
        size = size_on_disk(message.payload, message.topic)
        try:
            self._disk.cover_message(size)
            try:
                self._cursor.execute(INSERT, row)
            except sqlite3.Error as error:
                if not is_lack_of_room(error) or not self._disk.make_room(size):
                    raise
                self._cursor.execute(INSERT, row)
        except (sqlite3.Error, OSError) as error:
            self.trouble = str(error)
            self.refusing = self.refusing or self.trouble
            raise SpoolFullError(str(error)) from error
        if self.refusing is not None and not self._disk.tight:
            log.warning("the spool %s keeps messages again", self._path)  # a tight spool soon refuses the next one
        self.trouble = self.refusing = None
        self._note_row(key, self._cursor.lastrowid or 0, message)
        return key

    def _note_row(self, key: str, number: int, message: Message) -> None:
        self._ids[key] = number
        if len(message.payload) > _LARGE:
            self._large[key] = len(message.payload)

    def read(self, key: str) -> Kept | Unreadable | None:
        """Return a call that `keep` has written or `left_over` has yielded, None once it is removed."""
        number = self._ids.get(key)
        return None if number is None else row(self._connection, number)

    def permit(self, key: str) -> None:
        """Note, with the next `flush`, that the ACL allows a call; after a kill before that it is asked again."""
        self._permitted[key] = None

    def forget(self, key: str) -> None:
        """Remove a call that has ended, with one of the next calls of `flush`."""
        self._forgotten[key] = None
        self._permitted.pop(key, None)

    def flush(self) -> None:
        """Write what was permitted and forgotten in one commit, or in several small ones on a full disk.

        It writes as much as does not block the loop for too long, but at least one call; the next `flush` goes on.
        """
        if not self._forgotten and not self._permitted:
            return
        try:
            self._flush_part()
        except (sqlite3.Error, OSError) as error:
            if not self._has_failed:  # logged once: it is tried again every 10 ms
                log.error("the spool %s could not be written: %s", self._path, error)  # noqa: TRY400  # the fact is enough
            self._has_failed = True
            self.trouble = str(error)
            return
        if self._has_failed:
            log.warning("the spool %s can be written again", self._path)
        self._has_failed = False
        self.trouble = None

    def _flush_part(self) -> None:
        """Write as much as one commit may take; on a full disk remove rows first, a few at a time."""
        removed: list[str] = []
        permitted: list[str] = []
        budget = _MOST_FLUSHED
        for keys, part, factor in ((self._forgotten, removed, 1), (self._permitted, permitted, _PERMISSION_FACTOR)):
            for key in keys:
                if budget <= 0:
                    break
                part.append(key)
                budget -= _ROW_COST + factor * self._large.get(key, 0)
        if (self._disk.tight or self._lacks_room) and not removed:
            return  # no permissions now: each needs as much room as its row. After a kill the ACL is asked again
        try:
            self._write(removed, permitted)
            self._lacks_room = False
        except sqlite3.Error as error:
            if not is_lack_of_room(error):
                raise
            self._disk.make_room()
            for start in range(0, len(removed), _REMOVALS_ON_FULL_DISK):
                self._remove(removed[start : start + _REMOVALS_ON_FULL_DISK])
            self._lacks_room = True
            with contextlib.suppress(sqlite3.OperationalError):
                self._write([], permitted)
                self._lacks_room = False
            self._disk.restore_reserve()

    def _remove(self, removed: list[str]) -> None:
        """Remove rows on a full disk, if need be with the room that the reserve holds."""
        try:
            self._write(removed, [])
        except sqlite3.Error as error:
            if not is_lack_of_room(error) or not self._disk.make_room():
                raise
            self._write(removed, [])

    def _write(self, removed: list[str], permitted: list[str]) -> None:
        """Commit removals and permissions, by their keys; raises `sqlite3.Error` if nothing was written."""
        connection, ids = self._connection, self._ids
        try:
            connection.execute("BEGIN")
            connection.executemany("DELETE FROM calls WHERE id = ?", [(ids[key],) for key in removed if key in ids])
            connection.executemany(
                "UPDATE calls SET client_id = NULL, username = NULL WHERE id = ?",
                [(ids[key],) for key in permitted if key in ids],
            )
            connection.execute("COMMIT")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        for key in removed:  # at once: SQLite may give the id to the next message
            ids.pop(key, None)
            self._large.pop(key, None)
            del self._forgotten[key]
        for key in permitted:
            del self._permitted[key]

    # The log is moved into the file.

    def checkpoint(self) -> None:
        """Move what was committed from the write-ahead log into the database file; blocks while the disk works.

        Runs on a thread of its own, with a connection of its own, so that the loop's commits never wait for the disk.
        """
        self._is_checkpointed = False
        with (
            contextlib.suppress(sqlite3.Error),
            closing(sqlite3.connect(self._path, timeout=_BUSY_SECONDS)) as connection,
        ):
            _, pages, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._is_checkpointed = pages == moved

    def finish_checkpoint(self) -> None:
        """Restart a large log after a checkpoint, adapt the reserve to the disk, test whether writing works again."""
        self._lacks_room = False
        with contextlib.suppress(OSError, sqlite3.Error):
            if Path(f"{self._path}-wal").stat().st_size > self._large_log:
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._disk.finish_checkpoint(checkpointed=self._is_checkpointed)
            if self.trouble is not None and not self._disk.tight:
                self._connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")  # a write that changes nothing
                self.trouble = None

    def close(self) -> None:
        """Write what is left to write and close the file; blocks until all is written, or the disk takes no more."""
        left = -1
        while left != (left := len(self._forgotten) + len(self._permitted)):
            self.flush()
        self._disk.release()
        self._connection.close()
        self._disk.hold_for_next_start()
        self._lock.close()


class _DamagedError(sqlite3.DatabaseError):
    """SQLite's check has found a page that is not as it should be."""


def _hint(error: Exception) -> str:
    """Return the hint for a spool that cannot be used. It never costs the messages in the file."""
    if isinstance(error, OSError) or (isinstance(error, sqlite3.Error) and is_lack_of_room(error)):
        return _MAKE_ROOM
    if sqlite_code(error) == _SQLITE_BUSY:
        return "another program has it open"
    if sqlite_code(error) == _SQLITE_READONLY:
        return "the broker's user has to be allowed to write it, and its folder"
    return "if it is not a spool name another file; if it was one restore it from a backup. It is left as it is"

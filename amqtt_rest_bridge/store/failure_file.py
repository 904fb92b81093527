"""The SQLite file of the setting failures, in which kept runs survive a restart.

`admin/kept_runs` says on the loop what has changed (`put`); one thread writes it. Only the ids of changed runs wait to
be written, and of runs that are in the file and no longer kept. So their number is bounded, however long nothing can be
written. If the disk is full or the file is damaged, the log and `/readyz` report it, and they are written later. A file
that was removed or emptied is written again with all kept runs.

A lock on the file (`flock`) keeps other brokers away, each of which would remove the runs of the others.
"""

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.store.lock import lock_file
from amqtt_rest_bridge.system import NO_BLOCKS, is_lack_of_room, regular_file, sqlite_code
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

T = TypeVar("T")

_VERSION: Final = 1
_AGAIN_SECONDS: Final = 5.0  # after a write that failed
_LOG_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 5.0
_TABLE: Final = "CREATE TABLE runs (id TEXT PRIMARY KEY, run BLOB NOT NULL)"
_DENIED: Final = frozenset({8, 14})  # SQLITE_READONLY, SQLITE_CANTOPEN
_BUSY: Final = 5
_MAKE_ROOM: Final = "make room on it, and what waits is written"
_encoder: Final = msgspec.msgpack.Encoder()


class FailureFile(Generic[T]):
    """A file of kept runs, by their ids.

    Args:
        path: The file.
        kind: The type of runs, a `msgspec.Struct`.

    Raises:
        ConfigurationError: `path` is not such a file, cannot be written though its disk is not full, or is another
            broker's.
    """

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._decoder = msgspec.msgpack.Decoder(kind)
        self.trouble: str | None
        """Why the last write failed, None if it did not."""
        self._lock: int | None = None  # the descriptor of the locked file
        self._changed = threading.Condition()  # guards the following four
        self._kept: dict[str, T] = {}
        self._stored: set[str] = set()  # ids of runs that the file has
        self._waiting: dict[str, None] = {}  # ids of those to write or remove, in order
        self._closing = False
        self._lines = LineLimit(_LOG_SECONDS)
        self._thread: threading.Thread | None = None
        self._kept = self._load()
        self._stored = set(self._kept)
        self.loaded: list[T] = list(self._kept.values())
        """The runs that the file held when it was opened."""
        if self.trouble is not None:
            self._start_thread()

    @property
    def waiting(self) -> int:
        """How many runs wait to be written or removed."""
        return len(self._waiting)

    def put(self, run_id: str, run: T | None) -> None:
        """Queue a run to be written, or (None) removed; any thread, does not block."""
        with self._changed:
            if self._closing:
                return
            if run is not None:
                self._kept[run_id] = run
            else:
                self._kept.pop(run_id, None)
            if run is None and run_id not in self._stored:
                self._waiting.pop(run_id, None)
                return
            self._waiting[run_id] = None
            if self._thread is None:
                self._start_thread()
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, for some seconds at most, and release the file; blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
        if self._lock is not None and (self._thread is None or not self._thread.is_alive()):
            os.close(self._lock)
            self._lock = None

    def _load(self) -> dict[str, T]:
        """Return the runs in the file; none on a full disk, which `trouble` says."""
        self.trouble = None
        try:
            with self._open() as database:
                return {
                    run_id: self._decoder.decode(run) for run_id, run in database.execute("SELECT id, run FROM runs")
                }
        except (OSError, sqlite3.Error, msgspec.MsgspecError, TypeError) as error:  # the last for a row that is text
            if self._is_full(error):
                # A full disk stops no broker. What the file holds comes back with the next start.
                self._note_trouble(error)
                return {}
            self._unlock()
            why = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(f"cannot use {self._path} (failures): {why}; {_hint(error)}") from error
        except ConfigurationError:
            self._unlock()
            raise

    def _is_full(self, error: Exception) -> bool:
        """Return whether a full disk is the cause of a failure; SQLite has one code for it and for other causes."""
        if isinstance(error, OSError):
            return error.errno in NO_BLOCKS
        if not isinstance(error, sqlite3.Error) or not is_lack_of_room(error):
            return False
        probe = Path(f"{self._path}-probe")
        try:
            probe.write_bytes(bytes(64 << 10))
        except OSError as refused:
            return refused.errno in NO_BLOCKS
        finally:
            with contextlib.suppress(OSError):
                probe.unlink()
        return False

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Open the file. A missing or empty one gets its table, and all kept runs wait to be written."""
        self._take_lock()
        with contextlib.closing(sqlite3.connect(self._path, timeout=1.0)) as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if version > _VERSION and "runs" in tables:
                raise ConfigurationError(f"the file {self._path} (failures) is of a newer version of the bridge")
            if tables - {"runs"} or (version != _VERSION and (version or tables)):
                other = f"the file {self._path} (failures) is a database of something else; name another one"
                raise ConfigurationError(other)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            if version == 0:
                with database:
                    database.execute("BEGIN")
                    database.execute(_TABLE)
                    database.execute(f"PRAGMA user_version = {_VERSION}")
                with self._changed:
                    self._stored, self._waiting = set(), dict.fromkeys(self._kept)
            yield database

    def _take_lock(self) -> None:
        """Lock the file that has the name now, before SQLite opens it.

        Closing a descriptor of a file drops the locks that SQLite has on it in the same process.
        """
        try:
            there = regular_file(self._path)
            if self._lock is not None and os.path.samestat(os.fstat(self._lock), there):
                return
        except FileNotFoundError:
            pass
        self._unlock()
        in_use = f"the file {self._path} (failures) is used by another broker; give each its own"
        self._lock = lock_file(self._path, in_use)

    def _unlock(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def _start_thread(self) -> None:
        """Start the thread that writes."""
        thread = threading.Thread(target=self._write_all, name="failures-file", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads; the next run that is kept begins one
            self._note_trouble(error)
        else:
            self._thread = thread

    def _write_all(self) -> None:
        """Write whatever waits, until the file is closed; after a failure again in five seconds. On the thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing or self.trouble is not None)
                if self._closing and not self._waiting:
                    return
            try:
                self._write_waiting()
            except (OSError, sqlite3.Error, ConfigurationError) as error:
                self._note_trouble(error)
                with self._changed:
                    if self._closing or self._changed.wait_for(lambda: self._closing, _AGAIN_SECONDS):
                        return

    def _note_trouble(self, error: Exception) -> None:
        self.trouble = f"the disk of {self._path} is full; {_MAKE_ROOM}" if self._is_full(error) else str(error)
        if self._lines.count():
            log.error("failures cannot be written to %s: %s", self._path, self.trouble)

    def _write_waiting(self) -> None:
        """Write until nothing waits, over one connection."""
        with self._open() as database:
            while True:
                with self._changed:
                    runs = {run_id: self._kept.get(run_id) for run_id in self._waiting}
                    self._waiting = {}
                if not runs:
                    self.trouble = None
                    return
                try:
                    stored = _write(database, runs)
                except BaseException:
                    with self._changed:
                        again = [run_id for run_id in runs if run_id in self._kept or run_id in self._stored]
                        self._waiting = dict.fromkeys(again) | self._waiting
                    raise
                with self._changed:
                    self._stored = (self._stored - runs.keys()) | stored
                    self._waiting |= dict.fromkeys(stored - self._kept.keys())  # dropped meanwhile
                self.trouble = None


def _write(database: sqlite3.Connection, runs: Mapping[str, object]) -> set[str]:
    """Write runs, or (None) remove them, in one transaction; return the ids of those that were written."""
    written = set()
    with database:
        for run_id, run in runs.items():
            try:
                row = None if run is None else _encoder.encode(run)
            except UnicodeEncodeError as error:  # a text in it has no UTF-8 form: the run stays in memory
                log.error("the failure %s cannot be written: %s", run_id, error)  # noqa: TRY400  # the fact is enough
                row = None
            if row is None:
                database.execute("DELETE FROM runs WHERE id = ?", (run_id,))
            else:
                database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (run_id, row))
                written.add(run_id)
    return written


def _hint(error: Exception) -> str:
    """Return the hint for a file that cannot be used."""
    if isinstance(error, OSError) or sqlite_code(error) in _DENIED:
        return "name a file that can be written, in a folder that can"
    if sqlite_code(error) == _BUSY:
        return "another program has it open"
    return "move it away, and a new one is made"

"""The SQLite file in which kept runs survive a restart. The loop says what has changed; one thread writes.

What waits to be written is what is kept in memory, each run once, however often it changed, and the ids of those that
are to leave the file: so it is bounded as these are, however long nothing can be written. A disk that is full, or a
file that is damaged meanwhile, costs only what is on it: the log and `/readyz` say so, and all that has not been
written is tried again.
"""

import contextlib
import logging
import os
import sqlite3
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.records.kept_runs import KeptRun
from amqtt_rest_bridge.times import LineLimit

log = logging.getLogger(__name__)

_VERSION: Final = 1
_AGAIN_SECONDS: Final = 5.0  # after a write that failed
_LOG_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 5.0
_TABLE: Final = "CREATE TABLE IF NOT EXISTS runs (id TEXT PRIMARY KEY, run BLOB NOT NULL)"
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(KeptRun)


class FailureFile:
    """A file of kept runs.

    Raises:
        ConfigurationError: `path` is not such a file, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trouble: str | None = None
        """Why the last write failed, None when it did not."""
        self._changed = threading.Condition()
        self._waiting: dict[str, KeptRun | None] = {}
        self._being_written: Collection[str] = ()
        self._closing = False
        self._lines = LineLimit(_LOG_SECONDS)
        self._thread: threading.Thread | None = None
        rows = self._load()
        self._written = set(rows)
        self.loaded: list[KeptRun] = sorted(rows.values(), key=lambda run: run.record.time)
        """The runs that the file held when it was opened, the oldest first."""

    @property
    def waiting(self) -> int:
        """How many runs wait to be written or removed."""
        return len(self._waiting)

    def put(self, name: str, run: KeptRun | None) -> None:
        """Queue a run to be written, or (None) removed; any thread, does not block."""
        with self._changed:
            if self._closing:
                return
            if run is None and name not in self._written and name not in self._being_written:
                self._waiting.pop(name, None)  # the file never had it
                return
            self._waiting[name] = run
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="failures-file", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Write what waits, for some seconds at most; blocks."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _load(self) -> dict[str, KeptRun]:
        try:
            # It holds payloads of messages, which only its owner may read.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            with self._open() as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version not in (0, _VERSION):
                    raise ConfigurationError(f"the file {self._path} (failures) is of a newer version of the bridge")
                database.execute(_TABLE)
                database.execute(f"PRAGMA user_version = {_VERSION}")
                database.commit()
                return {name: _decoder.decode(run) for name, run in database.execute("SELECT id, run FROM runs")}
        except (OSError, sqlite3.Error, msgspec.MsgspecError, TypeError) as error:  # the last for a row that is text
            why = getattr(error, "strerror", None) or str(error)
            hint = "move it away, and a new one is made" if self._path.is_file() else "name a file that can be written"
            raise ConfigurationError(f"cannot use {self._path} (failures): {why}; {hint}") from error

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with contextlib.closing(sqlite3.connect(self._path, timeout=1.0)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            yield database

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
            try:
                self._write_waiting()
            except (OSError, sqlite3.Error) as error:
                self.trouble = str(error)
                if self._lines.count():
                    log.error("failures cannot be written to %s: %s", self._path, error)  # noqa: TRY400  # the fact is enough
                with self._changed:
                    if self._closing or self._changed.wait_for(lambda: self._closing, _AGAIN_SECONDS):
                        return

    def _write_waiting(self) -> None:
        """Write until nothing waits, over one connection."""
        with self._open() as database:
            while True:
                with self._changed:
                    waiting, self._waiting = self._waiting, {}
                    self._being_written = waiting
                if not waiting:
                    return
                written = set(self._written)
                try:
                    with database:
                        for name, run in waiting.items():
                            row = None if run is None else _encoded(run)
                            if row is None:
                                database.execute("DELETE FROM runs WHERE id = ?", (name,))
                                written.discard(name)
                            else:
                                database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?)", (name, row))
                                written.add(name)
                except BaseException:
                    written = self._written
                    raise
                finally:
                    with self._changed:
                        if written is self._written:
                            later = waiting | self._waiting  # what came meanwhile is newer
                            self._waiting = {
                                name: run for name, run in later.items() if run is not None or name in written
                            }
                        self._written, self._being_written = written, ()
                self.trouble = None


def _encoded(run: KeptRun) -> bytes | None:
    """Return a run as it is written; None for one with a text that has no UTF-8 form, which stays in memory."""
    try:
        return _encoder.encode(run)
    except UnicodeEncodeError as error:
        log.error("a failure of route %s cannot be written: %s", run.record.route, error)  # noqa: TRY400  # the fact is enough
        return None

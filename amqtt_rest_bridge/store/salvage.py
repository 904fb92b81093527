"""Salvage of a damaged spool: its rows are copied into a new file, and the damaged one stays beside it.

`Spool` calls it when the file that it opens is damaged. Blocks until all is copied.
"""

import contextlib
import itertools
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.store.rows import INSERT, SCHEMA, SCHEMA_VERSION, Kept, rows
from amqtt_rest_bridge.system import open_private

log = logging.getLogger(__name__)

_LEAST_PAGE: Final = 512
_MOST_MISSING: Final = 10_000  # unreadable rows one after the other that end the copy if the last id is unknown


def salvaged_path(path: Path) -> Path:
    """Return where the salvage of a spool builds the new file."""
    return Path(f"{path}-salvaged")


def salvage(path: Path, damage: str) -> None:
    """Replace a spool by a new file with every row that can be read; log how many, and the damaged file's new name.

    A kill loses nothing. Before the first rename the next start finds the damaged file and salvages it again; between
    the two renames it finds the new file by `salvaged_path` (see `lock`).

    Raises:
        sqlite3.Error: The file has no table of messages, or the new file cannot be written; nothing has changed.
    """
    names = (Path(f"{path}-damaged-{number}") for number in itertools.count(1))
    new, damaged = salvaged_path(path), next(name for name in names if not name.exists())
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.text_factory = bytes
        old.execute("PRAGMA writable_schema = ON")  # reads a file that is cut off
        if not old.execute("SELECT 1 FROM sqlite_schema WHERE name = 'calls'").fetchall():
            raise sqlite3.DatabaseError("it holds no messages")
        old.execute("PRAGMA journal_mode = DELETE")  # moves the write-ahead log into the file, page by page
        with path.open("r+b") as file:  # drops a last page that was cut off: SQLite would read its rest as zeros
            page, size = int.from_bytes(file.read(18)[16:18], "big"), file.seek(0, os.SEEK_END)
            if page >= _LEAST_PAGE and size % page:
                file.truncate(size - size % page)
        try:
            count = _copy(old, new)
        except sqlite3.Error:
            new.unlink(missing_ok=True)
            raise
    path.rename(damaged)
    new.rename(path)
    log.error(
        "the spool %s was damaged (%s): %d message(s) could be read and are sent; the damaged file is kept as %s",
        path,
        damage,
        count,
        damaged,
    )


def _copy(old: sqlite3.Connection, new: Path) -> int:
    """Copy all rows that can be read into the new file; return how many."""
    count = missing = 0
    os.close(open_private(new))
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("PRAGMA page_size = 1024")
        connection.execute("BEGIN")
        connection.execute(SCHEMA)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        last = 1 << 62  # the page that holds the highest id may be damaged
        with contextlib.suppress(sqlite3.DatabaseError):
            last = old.execute("SELECT coalesce(max(id), 0) FROM calls").fetchone()[0]
        for _number, kept in rows(old, last):
            if isinstance(kept, Kept):
                message = kept.message
                row = (kept.key, kept.route, kept.event, message.topic, message.payload, message.timestamp)
                connection.execute(INSERT, (*row, kept.hops, kept.client_id, kept.username))
                count, missing = count + 1, 0
                continue
            missing += 1
            if missing > _MOST_MISSING and last == 1 << 62:
                break
        connection.execute("COMMIT")
    return count

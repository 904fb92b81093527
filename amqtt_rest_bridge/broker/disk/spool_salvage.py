"""A damaged spool: what can be read goes into a new file, the damaged one stays beside it. At the start; blocks."""

import itertools
import logging
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

from amqtt_rest_bridge.broker.disk.spool_files import salvaged
from amqtt_rest_bridge.broker.disk.spool_rows import Kept, rows

log = logging.getLogger(__name__)

_LEAST_PAGE: Final = 512
_MOST_MISSING: Final = 10_000  # rows tried one after the other where the last one is not known


def salvage(path: Path, schema: str, insert: str, damage: str) -> None:
    """Replace the file by one with every row that can be read; log how many, and the name of the damaged one.

    Decision: the broker starts with what can be read, and stops for no file but one that holds no table of messages.

    A kill at any moment leaves either the damaged file in its place or the new one; between two renames the new one
    waits under its own name, where the next start finds it (see `SpoolLock`).

    Raises:
        sqlite3.Error: It is not a spool at all, or the new file cannot be written; nothing has changed.
    """
    new, beside = salvaged(path), _free_name(path)
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.text_factory = bytes
        old.execute("PRAGMA writable_schema = ON")  # reads a file that is cut off
        if not old.execute("SELECT 1 FROM sqlite_schema WHERE name = 'calls'").fetchall():
            raise sqlite3.DatabaseError("it holds no messages")
        old.execute("PRAGMA journal_mode = DELETE")  # carries the log into the file, page by page
        _cut_to_whole_pages(path)
        try:
            count = _copy(old, new, schema, insert)
        except sqlite3.Error:
            new.unlink(missing_ok=True)
            raise
    path.rename(beside)
    new.rename(path)
    log.error(
        "the spool %s was damaged (%s): %d message(s) could be read and are sent; the damaged file is kept as %s",
        path,
        damage,
        count,
        beside,
    )


def _cut_to_whole_pages(path: Path) -> None:
    """Remove what is left of a page at the end of a file that was cut off: SQLite would read the rest as zeros."""
    with path.open("r+b") as file:
        page = int.from_bytes(file.read(18)[16:18], "big")
        size = file.seek(0, os.SEEK_END)
        if page >= _LEAST_PAGE and size % page:
            file.truncate(size - size % page)


def _copy(old: sqlite3.Connection, new: Path, schema: str, insert: str) -> int:
    (version,) = old.execute("PRAGMA user_version").fetchone()
    count = missing = 0
    with closing(sqlite3.connect(new, isolation_level=None)) as copy:
        copy.execute("PRAGMA page_size = 1024")
        copy.execute("BEGIN")
        copy.execute(schema)
        copy.execute(f"PRAGMA user_version = {version}")
        last, is_known = _last(old)
        for _number, kept in rows(old, 0, last):
            if isinstance(kept, Kept):
                message = kept.message
                row = (kept.key, kept.route, kept.event, message.topic, message.payload, message.timestamp)
                copy.execute(insert, (*row, kept.hops, kept.client_id, kept.username))
                count, missing = count + 1, 0
                continue
            missing += 1
            if missing > _MOST_MISSING and not is_known:
                break
        copy.execute("COMMIT")
    return count


def _last(connection: sqlite3.Connection) -> tuple[int, bool]:
    """Return the highest id, and whether it is known; the page that holds it may be damaged."""
    try:
        return connection.execute("SELECT coalesce(max(id), 0) FROM calls").fetchone()[0], True
    except sqlite3.DatabaseError:
        return 1 << 62, False


def _free_name(path: Path) -> Path:
    names = (Path(f"{path}-damaged-{number}") for number in itertools.count(1))
    return next(name for name in names if not name.exists())

"""The spool's table and its rows, which are checked when they are read back: a file outlives programs and disks.

A new column is one step of `UPGRADES`, and in `_COLUMNS` and `INSERT`; it is read and checked here, `Spool.keep` and
`_copy` write it.

A row that cannot be read is an `Unreadable`, never an exception, so that it costs itself only. Of a damaged spool,
`salvage` carries what can be read into a new file; the damaged one stays beside it. At the start; blocks.
"""

import contextlib
import itertools
import logging
import math
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.system import open_private
from amqtt_rest_bridge.topics import check_topic_name, has_wildcards

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
UPGRADES: Final[dict[int, str]] = {0: _SCHEMA}  # from that version to the next; one at a time, at the start
_COLUMNS: Final = "key, route, event, topic, payload, timestamp, hops, client_id, username"  # all but the id, in order
INSERT: Final = f"INSERT INTO calls ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # constants

_PAGE: Final = 100  # rows, or ...
_PAGE_BYTES: Final = 1 << 20  # ... so many bytes of payloads, and one row more
# The reader asks for text as bytes (see `rows`), so the payload's own type has to be asked for.
_SELECT: Final = f"SELECT id, typeof(payload), {_COLUMNS} FROM calls WHERE id"  # noqa: S608  # constants
_LENGTHS: Final = f"SELECT id, length(payload) FROM calls WHERE id > ? AND id <= ? ORDER BY id LIMIT {_PAGE}"  # noqa: S608
_SHOWN: Final = 200  # characters
_KEY: Final = re.compile(r"[!-~]{1,200}")  # what a header may hold
_YEAR_10000: Final = 253_402_300_800.0
_LEAST_PAGE: Final = 512
_MOST_MISSING: Final = 10_000  # rows tried one after the other where the last one is not known


@dataclass(frozen=True, slots=True)
class Kept:
    """A call on disk; with a `client_id` the ACL has not yet said whether its publisher may."""

    key: str
    route: str
    event: str
    message: Message
    hops: int
    client_id: str | None
    username: str | None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A row that stays on disk because nothing can be made of it; `route` and `event` as far as they can be read."""

    id: int
    route: str | None
    event: str | None
    reason: str


def foreign_content(connection: sqlite3.Connection, version: int) -> str | None:
    """Return what shows that a database with this `user_version` is not a spool, None when nothing does.

    A spool gets its table and its version in one transaction; version 0 is a new file. Reads only.
    """
    tables = [_name(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    if (version == 0 and tables) or (version and "calls" not in tables):
        return f"its tables: {', '.join(map(str, tables)) or 'none'}"[:_SHOWN]
    columns = {_name(column[1]) for column in connection.execute("PRAGMA table_info(calls)")}
    missing = [name for name in _COLUMNS.split(", ") if tables and name not in columns]
    return f"its table calls has no column {missing[0]}" if missing else None


def rows(connection: sqlite3.Connection, after: int, last: int) -> Iterator[tuple[int, Kept | Unreadable]]:
    """Yield every row with an id above `after` and up to `last`, in order of arrival; reads some at a time.

    `connection` has `text_factory` bytes, so that text in a wrong encoding can be read at all.
    """
    while after < last:
        try:
            end, size = after, 0
            for number, length in connection.execute(_LENGTHS, (after, last)):
                end, size = number, size + (length or 0)
                if size > _PAGE_BYTES:
                    break
            found = connection.execute(f"{_SELECT} > ? AND id <= ? ORDER BY id", (after, end)).fetchall()
        except sqlite3.DatabaseError:  # a damaged page: the others can be reached row by row
            until = min(after + _PAGE, last)
            for number in range(after + 1, until + 1):
                yield from row(connection, number)
            after = until
            continue
        if not found:
            return
        for columns in found:
            yield columns[0], _read(*columns)
        after = found[-1][0]


def row(connection: sqlite3.Connection, number: int) -> Iterator[tuple[int, Kept | Unreadable]]:
    """Yield the row with this id, if there is one."""
    try:
        found = connection.execute(f"{_SELECT} = ?", (number,)).fetchall()
    except sqlite3.DatabaseError as error:
        yield number, Unreadable(number, None, None, str(error))
        return
    for columns in found:
        yield number, _read(*columns)


def _read(number: int, payload_type: bytes, *columns: Any) -> Kept | Unreadable:
    try:
        kept = _kept(*columns)
    except ValueError as error:
        return Unreadable(number, _name(columns[1]), _name(columns[2]), str(error))
    if payload_type != b"blob":
        return Unreadable(number, kept.route, kept.event, f"its payload is not binary but {payload_type.decode()}")
    return kept


def _kept(
    key: Any, route: Any, event: Any, topic: Any, payload: Any, timestamp: Any, hops: Any, client: Any, user: Any
) -> Kept:
    name = _text("topic", topic)
    if not name or has_wildcards(name):  # else as amqtt took it from the publisher: control characters, too
        raise ValueError(f"its topic {check_topic_name(name)}")
    if not isinstance(timestamp, float) or not math.isfinite(timestamp) or not 0 <= timestamp < _YEAR_10000:
        raise ValueError("its timestamp is not a time")
    if not isinstance(hops, int) or hops < 0:
        raise ValueError("its number of hops is not one")
    if _KEY.fullmatch(_text("key", key)) is None:
        raise ValueError("its key is not allowed in a header")
    message = Message(name, payload, timestamp)
    who, user_name = (None if value is None else _text("publisher", value) for value in (client, user))
    return Kept(_text("key", key), _text("route", route), _text("event", event), message, hops, who, user_name)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, bytes):
        raise ValueError(f"its {what} is not text")  # noqa: TRY004  # one kind of fault
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"its {what} is not UTF-8") from None


def _name(value: Any) -> str | None:
    """Return a route's or event's name for a log line, None when there is nothing to show."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else None


def salvaged(path: Path) -> Path:
    """Return where a salvage builds the new file."""
    return Path(f"{path}-salvaged")


def salvage(path: Path, damage: str) -> None:
    """Replace the file by one with every row that can be read; log how many, and the name of the damaged one.

    Decision: the broker starts with what can be read, and stops for no file but one that holds no table of messages.

    A kill at any moment leaves either the damaged file in its place or the new one; between two renames the new one
    waits under its own name, where the next start finds it (see `SpoolLock`).

    Raises:
        sqlite3.Error: It is not a spool at all, or the new file cannot be written; nothing has changed.
    """
    names = (Path(f"{path}-damaged-{number}") for number in itertools.count(1))
    new, beside = salvaged(path), next(name for name in names if not name.exists())
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(path, isolation_level=None)) as old:
        old.text_factory = bytes
        old.execute("PRAGMA writable_schema = ON")  # reads a file that is cut off
        if not old.execute("SELECT 1 FROM sqlite_schema WHERE name = 'calls'").fetchall():
            raise sqlite3.DatabaseError("it holds no messages")
        old.execute("PRAGMA journal_mode = DELETE")  # carries the log into the file, page by page
        with path.open("r+b") as file:  # what is left of a page at the end of a file that was cut off reads as zeros
            page, size = int.from_bytes(file.read(18)[16:18], "big"), file.seek(0, os.SEEK_END)
            if page >= _LEAST_PAGE and size % page:
                file.truncate(size - size % page)
        try:
            count = _copy(old, new)
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


def _copy(old: sqlite3.Connection, new: Path) -> int:
    count = missing = 0
    os.close(open_private(new))
    with closing(sqlite3.connect(new, isolation_level=None)) as copy:
        copy.execute("PRAGMA page_size = 1024")
        copy.execute("BEGIN")
        copy.execute(_SCHEMA)
        copy.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        last = 1 << 62  # the page that holds the highest id may be damaged
        with contextlib.suppress(sqlite3.DatabaseError):
            last = old.execute("SELECT coalesce(max(id), 0) FROM calls").fetchone()[0]
        for _number, kept in rows(old, 0, last):
            if isinstance(kept, Kept):
                message = kept.message
                row = (kept.key, kept.route, kept.event, message.topic, message.payload, message.timestamp)
                copy.execute(INSERT, (*row, kept.hops, kept.client_id, kept.username))
                count, missing = count + 1, 0
                continue
            missing += 1
            if missing > _MOST_MISSING and last == 1 << 62:
                break
        copy.execute("COMMIT")
    return count

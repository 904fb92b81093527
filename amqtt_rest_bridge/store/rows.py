"""The table of the spool, and its rows. A row is checked when it is read: the file may be damaged, or written by hand.

A row that cannot be read is an `Unreadable`, never an exception, so that all others are read.

A new column is one step of `UPGRADES`, and in `_COLUMNS` and `INSERT`. It is read and checked here, and written by
`Spool.keep` and `salvage`.
"""

import math
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.topics import check_topic_name, has_wildcards

SCHEMA_VERSION: Final = 1
SCHEMA: Final = """
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
UPGRADES: Final[dict[int, str]] = {0: SCHEMA}  # from that version to the next; one at a time, at the start
_COLUMNS: Final = "key, route, event, topic, payload, timestamp, hops, client_id, username"  # all but the id, in order
INSERT: Final = f"INSERT INTO calls ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608  # constants

# So much is read at once: 100 rows, or less once their payloads are larger than 1 MiB.
_PAGE: Final = 100
_PAGE_BYTES: Final = 1 << 20
# The reader asks for text as bytes (see `rows`), so the payload's own type has to be asked for.
_SELECT: Final = f"SELECT id, typeof(payload), {_COLUMNS} FROM calls WHERE id"  # noqa: S608  # constants
_LENGTHS: Final = f"SELECT id, length(payload) FROM calls WHERE id > ? AND id <= ? ORDER BY id LIMIT {_PAGE}"  # noqa: S608
_SHOWN: Final = 200  # characters of the names of tables, in a message
_KEY: Final = re.compile(r"[!-~]{1,200}")  # what a header may hold
_YEAR_10000: Final = 253_402_300_800.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A call on disk. `client_id` and `username` are its publisher's until the ACL has allowed the call, then None."""

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


def rows(connection: sqlite3.Connection, last: int) -> Iterator[tuple[int, Kept | Unreadable]]:
    """Yield every row with an id up to `last`, and its id, in order of arrival; reads some at a time.

    `connection` has `text_factory` bytes, so that text in a wrong encoding can be read at all.
    """
    after = 0
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
                if (kept := row(connection, number)) is not None:
                    yield number, kept
            after = until
            continue
        if not found:
            return
        for columns in found:
            yield columns[0], _read(*columns)
        after = found[-1][0]


def row(connection: sqlite3.Connection, number: int) -> Kept | Unreadable | None:
    """Return the row with this id, None if there is none."""
    try:
        columns = connection.execute(f"{_SELECT} = ?", (number,)).fetchone()
    except sqlite3.DatabaseError as error:
        return Unreadable(number, None, None, str(error))
    return None if columns is None else _read(*columns)


def _read(number: int, payload_type: bytes, *columns: Any) -> Kept | Unreadable:
    """Return what the columns of `_SELECT` hold."""
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
    """Return the call that the columns of a row hold; raises ValueError for one that cannot be a call."""
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

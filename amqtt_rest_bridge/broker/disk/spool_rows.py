"""Rows of the spool: what was written is checked when it is read back, since a file outlives programs and disks.

A row that cannot be read is an `Unreadable`, never an exception, so that it costs itself alone. Pure but for the reads.
"""

import math
import re
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from amqtt_rest_bridge.model import Message
from amqtt_rest_bridge.topics import check_topic_name

COLUMNS: Final = "key, route, event, topic, payload, timestamp, hops, client_id, username"
_PAGE: Final = 100  # rows, or ...
_PAGE_BYTES: Final = 1 << 20  # ... so many bytes of payloads, and one row more
_SHOWN: Final = 200  # characters
# The reader asks for text as bytes (see `rows`), so the payload's own type has to be asked for.
_SELECT: Final = f"SELECT id, typeof(payload), {COLUMNS} FROM calls WHERE id"  # noqa: S608  # constants
_LENGTHS: Final = f"SELECT id, length(payload) FROM calls WHERE id > ? AND id <= ? ORDER BY id LIMIT {_PAGE}"  # noqa: S608
_KEY: Final = re.compile(r"[!-~]{1,200}")  # what a header may hold
_YEAR_10000: Final = 253_402_300_800.0


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

    A spool gets its table and its version in one transaction; version 0 is a new file. Reads alone.
    """
    tables = [_name(name) for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    if (version == 0 and tables) or (version and "calls" not in tables):
        return f"its tables: {', '.join(map(str, tables)) or 'none'}"[:_SHOWN]
    columns = {_name(column[1]) for column in connection.execute("PRAGMA table_info(calls)")}
    missing = [name for name in COLUMNS.split(", ") if tables and name not in columns]
    return f"its table calls has no column {missing[0]}" if missing else None


def rows(connection: sqlite3.Connection, after: int, last: int) -> Iterator[tuple[int, Kept | Unreadable]]:
    """Yield every row with an id above `after` and up to `last`, in order of arrival; reads some at a time.

    `connection` has `text_factory` bytes, so that text in a wrong encoding can be read at all.
    """
    while after < last:
        try:
            end = _page_end(connection, after, last)
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


def _page_end(connection: sqlite3.Connection, after: int, last: int) -> int:
    """Return the id of the last row that is read together with those before it; `after` where there is none."""
    end, size = after, 0
    for number, length in connection.execute(_LENGTHS, (after, last)):
        end, size = number, size + (length or 0)
        if size > _PAGE_BYTES:
            break
    return end


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
    fault = check_topic_name(name)
    if fault is not None:
        raise ValueError(f"its topic {fault}")
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

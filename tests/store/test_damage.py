"""A damaged spool, and rows that cannot be read: what is whole is sent, and nothing is thrown away."""

import contextlib
import itertools
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from amqtt_rest_bridge.store import Kept, Spool, Unreadable
from amqtt_rest_bridge.store.salvage import salvage
from tests.store.filling import filled, in_child, keep, keys_on_disk, left_over, message, opened


def cut_off(content: bytearray) -> None:
    del content[len(content) // 2 :]


def overwrite_a_page(content: bytearray) -> None:
    content[10 * 1024 : 11 * 1024] = b"damage! " * 128


def overwrite_the_last_page(content: bytearray) -> None:
    content[-1024:] = b"damage! " * 128


def killed_at_rename(path: Path, number: int) -> None:
    """Open a spool in a process that is killed before its first or second rename."""

    def work(_: object) -> None:
        renames, rename = itertools.count(1), Path.rename

        def counted(self: Path, target: Path) -> Path:
            if next(renames) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return rename(self, target)

        Path.rename = counted  # type: ignore[method-assign,assignment]
        Spool(path)

    in_child(work)


@pytest.mark.parametrize("damage", [cut_off, overwrite_a_page, overwrite_the_last_page])
@pytest.mark.parametrize("renames", [0, 1, 2], ids=["whole", "killed before", "killed between the renames"])
def test_what_can_be_read_of_a_damaged_spool_is_sent_and_the_file_is_kept(
    path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytearray], None],
    renames: int,
) -> None:
    keys = filled(path, 200)
    content = bytearray(path.read_bytes())
    damage(content)
    path.write_bytes(content)
    if renames:
        killed_at_rename(path, renames)
    with opened(path) as spool:
        found = left_over(spool)
        assert len(found) > 60
        assert [one.key for one in found] == [key for key in keys if key in {one.key for one in found}]
        assert all(one.message.payload == message(keys.index(one.key)).payload for one in found)
        keep(spool)
    assert path.with_name("spool.db-damaged-1").read_bytes()[1024:] == content[1024 : len(content) // 1024 * 1024]
    assert f"the spool {path} was damaged" in caplog.text
    assert len(keys_on_disk(path)) == len(found) + 1


def test_what_is_salvaged_has_the_present_format_whatever_the_damaged_file_says(path: Path) -> None:
    filled(path, 200)
    content = bytearray(path.read_bytes())
    content[60:64] = bytes(4)  # its user_version
    overwrite_a_page(content)
    path.write_bytes(content)
    salvage(path, "damaged")
    assert len(keys_on_disk(path)) > 60


UNREADABLE = [
    pytest.param("topic = CAST(x'ff61' AS TEXT)", "its topic is not UTF-8", id="topic not UTF-8"),
    pytest.param("topic = 'a/+'", "its topic holds the wildcard", id="wildcard"),
    pytest.param("topic = ''", "its topic is empty", id="no topic"),
    pytest.param("key = CAST(x'c3' AS TEXT)", "its key is not UTF-8", id="key not UTF-8"),
    pytest.param("key = 'a' || char(10)", "its key is not allowed in a header", id="key with a line break"),
    pytest.param("hops = -1", "its number of hops is not one", id="negative hops"),
    pytest.param("timestamp = 9e999", "its timestamp is not a time", id="endless time"),
    pytest.param("username = CAST(x'ff' AS TEXT)", "its publisher is not UTF-8", id="user name not UTF-8"),
    pytest.param("payload = 'text'", "its payload is not binary but text", id="payload of text"),
    pytest.param("payload = 17", "its payload is not binary but integer", id="payload of a number"),
    pytest.param("payload = NULL", "its payload is not binary but null", id="no payload"),
    pytest.param("hops = 'many'", "its number of hops is not one", id="hops of text"),
    pytest.param("route = x'ff'", "its route is not UTF-8", id="route not UTF-8"),
]


def spoil(path: Path, assignment: str, number: int) -> None:
    """Write into a row what the table's types forbid."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        (sql,) = connection.execute("SELECT sql FROM sqlite_schema WHERE name = 'calls'").fetchone()
        loose = sql.replace("STRICT", "").replace("NOT NULL", "")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'calls'", (loose,))
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute(f"UPDATE calls SET {assignment} WHERE id = ?", (number,))
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_schema SET sql = ? WHERE name = 'calls'", (sql,))


@pytest.mark.parametrize(("assignment", "reason"), UNREADABLE)
def test_a_row_that_cannot_be_read_is_named_and_stays_and_the_others_are_read(
    path: Path, assignment: str, reason: str
) -> None:
    keys = filled(path, 5)
    spoil(path, assignment, 3)
    for _ in range(2):
        with opened(path) as spool:
            found = list(spool.left_over())
        assert [one.key for one in found if isinstance(one, Kept)] == [*keys[:2], *keys[3:]]
        (bad,) = (one for one in found if isinstance(one, Unreadable))
        assert (bad.id, bad.event) == (3, "E")
        assert reason in bad.reason

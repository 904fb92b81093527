"""The spool: what is kept survives, what cannot be used is refused with a clear line."""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.lot.model import Message
from amqtt_rest_bridge.store import BatchNumbers, Kept
from amqtt_rest_bridge.store.spool import Spool
from tests.store.filling import filled, in_child, keep, keys_on_disk, left_over, message, opened
from tests.support.lossless import on_disk


def test_what_is_kept_is_there_after_reopening_oldest_first(path: Path) -> None:
    with opened(path) as spool:
        keys = [keep(spool, number, ("me", "name")) for number in range(250)]
        spool.permit(keys[0])
        spool.forget(keys[1])
    with opened(path) as spool:
        kept = left_over(spool)
    assert [one.key for one in kept] == [keys[0], *keys[2:]]
    assert kept[1].message == message(2)
    assert [(one.client_id, one.username) for one in kept[:2]] == [(None, None), ("me", "name")]


def test_what_is_kept_is_on_disk_at_once_and_what_is_forgotten_after_a_flush(path: Path) -> None:
    with opened(path) as spool:
        key = keep(spool)
        assert on_disk(path) == 1
        spool.forget(key)
        assert on_disk(path) == 1
        spool.flush()
        assert on_disk(path) == 0


# What cannot be used.


def test_a_file_that_is_not_a_spool_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"no database" * 100)
    with pytest.raises(ConfigurationError, match=r"cannot use the spool .*name another file.*left as it is"):
        Spool(path)
    assert path.read_bytes() == b"no database" * 100


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(Path.mkdir, "it is a folder", id="folder"),
        pytest.param(os.mkfifo, "it is a FIFO", id="FIFO"),
        pytest.param(lambda path: path.symlink_to("/dev/null"), "it is a device", id="device"),
    ],
)
def test_a_path_that_is_not_a_regular_file_is_refused_and_nothing_is_put_beside_it(
    path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(path)
    with pytest.raises(ConfigurationError, match=rf"cannot open the spool .*{said}, not a regular file; name a file"):
        Spool(path)
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot open the spool .*nowhere/spool\.db"):
        Spool(tmp_path / "nowhere" / "spool.db")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        pytest.param("CREATE TABLE orders (id)", "its tables: orders", id="version 0"),
        pytest.param("CREATE TABLE calls (id, key)", "its tables: calls", id="a table of our name"),
        pytest.param("CREATE TABLE orders (id); PRAGMA user_version = 1", "its tables: orders", id="our version"),
        pytest.param("PRAGMA user_version = 7", "its tables: none", id="a later version, empty"),
        pytest.param("CREATE TABLE calls (key); PRAGMA user_version = 1", "its table calls has no", id="other columns"),
    ],
)
def test_a_database_of_another_program_is_refused_and_left_as_it_is(path: Path, schema: str, said: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(schema)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=rf"another program \({said}.*\); name another file"):
        Spool(path)
    assert path.read_bytes() == before


def test_a_second_broker_on_the_same_file_is_refused_until_the_first_one_ends(path: Path) -> None:
    with opened(path), pytest.raises(ConfigurationError, match=r"cannot use the spool .*: another broker uses it"):
        Spool(path)
    Spool(path).close()


def test_a_spool_reached_by_a_symbolic_link_is_the_same_spool(path: Path) -> None:
    link = path.parent / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    with opened(link) as spool:
        with pytest.raises(ConfigurationError, match="another broker uses it"):
            Spool(path)
        key = keep(spool)
        assert list(link.parent.iterdir()) == [link], "another broker that uses the file itself finds its other files"
    assert keys_on_disk(path) == [key]


def test_a_spool_with_two_names_is_refused_until_one_of_them_is_gone(path: Path) -> None:
    keys, other = filled(path, 3), path.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(ConfigurationError, match=r"several names .*Remove the other names"):
            Spool(name)
    other.unlink()
    assert keys_on_disk(path) == keys


@pytest.mark.parametrize("link", [Path.hardlink_to, lambda other, path: path.rename(other)], ids=["link", "moved"])
def test_a_second_broker_does_not_get_a_spool_in_use_under_another_name(
    path: Path, link: Callable[[Path, Path], object]
) -> None:
    other = path.with_name("other.db")

    def open_other(write: Callable[[str], object]) -> None:
        try:
            Spool(other)
        except ConfigurationError as error:
            write(str(error))

    with opened(path):
        link(other, path)
        (said,) = in_child(open_other)
    assert "another broker" in said


# What is written when.


def test_a_write_that_fails_is_logged_and_done_later(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path) as spool, contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        key = keep(spool)
        spool._connection.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")
        spool.forget(key)
        for _ in range(3):
            spool.flush()
        assert caplog.text.count("could not be written") == 1
        other.execute("ROLLBACK")
        spool.flush()
        assert "can be written again" in caplog.text
    assert keys_on_disk(path) == []


def test_a_checkpoint_moves_what_was_committed_and_a_large_log_is_restarted(path: Path) -> None:
    log = path.with_name("spool.db-wal")
    with contextlib.closing(Spool(path, large_log=4 << 20)) as spool:
        kept = [keep(spool, 200) for _ in range(500)]
        assert log.stat().st_size > path.stat().st_size
        spool.checkpoint()
        assert path.stat().st_size > 500 * 200
        spool.finish_checkpoint()
        assert 0 < log.stat().st_size < 4 << 20
        while log.stat().st_size < 4 << 20:
            kept.append(keep(spool, 200))
        spool.checkpoint()
        spool.finish_checkpoint()
        assert log.stat().st_size == 0
    assert keys_on_disk(path) == kept


def test_a_burst_of_large_calls_is_written_in_parts_and_as_a_whole_at_the_end(path: Path) -> None:
    count, large = 100, Message("in", b"x" * 200_000, 0.0)

    def permitted() -> int:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT count(*) FROM calls WHERE client_id IS NULL").fetchone()[0])

    with opened(path) as spool:
        keys = [spool.keep("R", "E", large, 0, ("client", None)) for _ in range(count)]
        for key in keys:
            spool.permit(key)
        spool.flush()
        assert 0 < permitted() < 10
        while permitted() < count:
            spool.flush()
        for key in keys:
            spool.forget(key)
        spool.flush()
        assert count / 2 < on_disk(path) < count
    assert on_disk(path) == 0


def test_a_call_that_takes_more_than_one_commit_may_is_removed_all_the_same(path: Path) -> None:
    with opened(path) as spool:
        for _ in range(2):
            spool.forget(spool.keep("R", "E", Message("in", bytes(5 << 20), 0.0), 0, None))
        for left in (1, 0):
            spool.flush()
            assert on_disk(path) == left


def test_what_was_permitted_and_finds_no_room_to_be_noted_is_tried_again_when_calls_end_or_a_second_is_over(
    path: Path,
) -> None:
    with opened(path) as spool:
        large = Message("in/large", bytes(50_000), 1000.0)
        keys = [spool.keep("R", "E", large, 0, ("me", None)) for _ in range(2)]
        pages = spool._connection.execute("PRAGMA page_count").fetchone()[0]
        spool._connection.execute(f"PRAGMA max_page_count = {pages}")
        written: list[str] = []
        spool._connection.set_trace_callback(lambda sql: written.append(sql.split()[0]))
        spool.permit(keys[0])
        spool.flush()
        assert "UPDATE" in written
        written.clear()
        for _ in range(100):
            spool.flush()
        assert written == []
        spool.finish_checkpoint()
        spool.flush()
        assert "UPDATE" in written
        spool.forget(keys[1])
        spool.flush()
        assert "COMMIT" in written
    with opened(path) as again:
        assert [(one.key, one.client_id) for one in left_over(again)] == [(keys[0], None)]


def test_keys_tell_the_batch_of_a_call_and_its_place_there(path: Path) -> None:
    with opened(path) as spool:
        one, other = BatchNumbers(2, 10.0), BatchNumbers(3, 10.0)

        def key(batch: BatchNumbers | None, now: float) -> str:
            return spool.keep("R", "E", Message("in", b"", now), 0, None, batch)[24:]

        assert [key(one, 1.0), key(other, 1.0), key(one, 2.0), key(None, 2.0)] == [
            "800000000000",
            "800000010000",
            "800000000001",
            "000000000000",
        ]
        assert key(one, 3.0) == "800000020000", "a full batch goes on"
        assert key(other, 9.5) == "800000030000", "a batch is not over before its BATCH_SECONDS"
        assert key(other, 9.0) == "800000040000", "a clock that was set back is not noticed"


# Versions of the format.


FORMAT_1 = """
    CREATE TABLE calls (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        route TEXT NOT NULL,
        event TEXT NOT NULL,
        topic TEXT NOT NULL,
        payload BLOB NOT NULL,
        timestamp REAL NOT NULL,
        hops INTEGER NOT NULL,
        client_id TEXT,
        username TEXT
    ) STRICT;
    INSERT INTO calls VALUES (7, 'key', 'R', 'E', 'in/x', x'00ff', 12.5, 2, NULL, NULL);
    PRAGMA user_version = 1;
"""


def test_a_file_of_the_version_before_is_read(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(FORMAT_1)
    with opened(path) as spool:
        assert left_over(spool) == [Kept("key", "R", "E", Message("in/x", b"\x00\xff", 12.5), 2, None, None)]


def test_a_spool_of_a_newer_version_is_refused(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(FORMAT_1 + "PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match="a newer version of amqtt-rest-bridge wrote it"):
        Spool(path)

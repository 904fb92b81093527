"""Files that hold payloads are for their owner alone, whatever the umask, and whatever an earlier version made."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import lossless
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder, recording

DEDUPE = 'WITH DESTINATION_TOPIC "out" WITH DEDUPE_KEY "{payload}"'


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as recorder:
        recorder.answer = lambda _: (422, b"")
        yield recorder


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    folder = tmp_path / "kept"
    folder.mkdir()
    return folder


def route(target: Recorder) -> str:
    return lossless.route(target.port).replace('WITH DESTINATION_TOPIC "out"', DEDUPE)


def files_in(kept: Path) -> dict[str, Any]:
    """Return the settings that name files in a folder."""
    return {"spool": str(kept / "spool.db"), "failures": str(kept / "failures.db")}


def modes(kept: Path) -> dict[str, int]:
    found = {}
    for path in kept.iterdir():
        with contextlib.suppress(FileNotFoundError):  # SQLite removes its log at the end of a connection
            found[path.name] = stat.S_IMODE(path.stat().st_mode)
    return found


def test_each_file_that_is_made_is_for_its_owner_alone(target: Recorder, kept: Path) -> None:
    with hosting(route(target), **files_in(kept)) as host:
        client = host.client("out")
        client.publish("in/1", b"x")
        client.message()
        beside = {f"{name}{suffix}" for name in ("spool.db", "spool.db-seen") for suffix in ("", "-wal", "-shm")}
        assert beside | {"failures.db", "spool.db-lock", "spool.db-reserve"} <= modes(kept).keys()
        assert set(modes(kept).values()) == {0o600}
    assert set(modes(kept).values()) == {0o600}


@pytest.mark.parametrize("damaged", [pytest.param(False, id="whole"), pytest.param(True, id="damaged")])
def test_each_file_that_an_earlier_version_has_left_is_for_its_owner_alone(
    target: Recorder, kept: Path, *, damaged: bool
) -> None:
    target.answer = lambda _: (503, b"")
    with hosting(route(target), **files_in(kept)) as host:
        client = host.client()
        for number in range(100):
            client.publish("in/1", b"%d" % number)
        left = {path.name: path.read_bytes() for path in kept.iterdir()}  # as a broker that is killed leaves them
    if damaged:
        content = (kept / "spool.db").read_bytes()
        left = {"spool.db": content[: len(content) // 2]}
    for path in kept.iterdir():
        path.unlink()
    for name, content in left.items():
        (kept / name).write_bytes(content)
    target.answer = lambda _: (422, b"")
    with hosting(route(target), **files_in(kept)) as host:
        client = host.client("out")
        client.publish("in/1", b"x")
        client.message()
        assert (kept / "spool.db-damaged-1").exists() is damaged
        assert left.keys() <= modes(kept).keys()
        assert set(modes(kept).values()) == {0o600}

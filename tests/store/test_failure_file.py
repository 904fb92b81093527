"""The file in which failures survive a restart: what is wrong with it is said, and costs nothing else."""

import itertools
import json
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from amqtt_rest_bridge.admin.kept_runs import KeptRun
from amqtt_rest_bridge.admin.runs import Run
from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.store import failure_file
from amqtt_rest_bridge.store.failure_file import FailureFile
from tests.support.admin_client import (
    TOKEN,
    admin_of,
    admin_with_token,
    client_route,
    post,
    refusing_with_reason,
)
from tests.support.broker_process import BrokerProcess
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder
from tests.support.waiting import SECONDS, eventually


def kept(number: int, message: str = "why", payload: bytes = b"payload") -> KeptRun:
    record = Run(float(number), "call", str(number), "R", "E", "in", code="http_status", message=message)
    return KeptRun(record, "in", 0.0, payload, None)


def loaded(path: Path) -> list[KeptRun]:
    with closing(FailureFile(path, KeptRun)) as file:
        return file.loaded


def test_failures_survive_a_restart_with_their_messages(target: Recorder, tmp_path: Path) -> None:
    target.answer = refusing_with_reason
    settings: dict[str, Any] = {"admin_port": 0, "admin_token": TOKEN, "failures": str(tmp_path / "failures.db")}
    with hosting(client_route(target.url), **settings) as host:
        client = host.client("done/#")
        client.publish("orders/7", b"bad")
        name = json.loads(client.message()[1])["id"]
    assert (tmp_path / "failures.db").stat().st_mode & 0o077 == 0
    target.answer = lambda _: (200, b"{}")
    with hosting(client_route(target.url), **settings) as host:
        admin, client = admin_with_token(host), host.client("done/#")
        run = admin.get(f"/api/runs/{name}").json
        assert (run["message"]["payload"], run["response"]["body"]) == ("bad", '{"reason": "no such customer"}')
        target.take_all()
        status, started = post(admin, f"/api/runs/{name}/retry")
        assert status == 202
        client.message()
        assert target.request().body == b"bad"
    with hosting(client_route(target.url), **settings) as host:
        admin = admin_with_token(host)
        assert admin.get(f"/api/runs/{name}").json["retried_as"] == started["id"]
        assert admin.get(f"/api/runs/{started['id']}").json["retry_of"] == name


OURS: Final = "CREATE TABLE runs (id TEXT PRIMARY KEY, run BLOB NOT NULL)"
OTHER: Final = "CREATE TABLE guests (name TEXT)"
OF_ANOTHER: Final = "is a database of something else; name another one"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"not a database" * 100, r"\(failures\): file is not a database; move it away", id="no database"),
        pytest.param(None, "name a file that can be written", id="folder"),
        pytest.param(f"{OURS}; PRAGMA user_version = 99", "of a newer version of the bridge", id="newer version"),
        pytest.param(
            f"{OURS}; PRAGMA user_version = 1; INSERT INTO runs VALUES ('1', 'text')",
            r"\(failures\): .*; move it away", id="a row that is none",
        ),
        pytest.param(OTHER, OF_ANOTHER, id="of another program"),
        pytest.param(f"{OTHER}; PRAGMA user_version = 1", OF_ANOTHER, id="of another program, our version"),
        pytest.param(f"{OTHER}; PRAGMA user_version = 7", OF_ANOTHER, id="of another program, a later version"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_stops_the_start_and_says_what_to_do_and_a_database_of_something_else_is_left_as_it_is(
    tmp_path: Path, content: bytes | str | None, said: str
) -> None:
    path = tmp_path / "failures.db"
    if content is None:
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        with closing(sqlite3.connect(path)) as database:
            database.executescript(content)
    before = None if said != OF_ANOTHER else path.read_bytes()
    with pytest.raises(ConfigurationError, match=said):
        FailureFile(path, KeptRun)
    assert before is None or path.read_bytes() == before


def test_a_file_that_cannot_be_written_any_more_is_said_and_costs_nothing_else(
    target: Recorder, tmp_path: Path
) -> None:
    file = tmp_path / "failures.db"
    target.answer = lambda _: (422, b"")
    with hosting(client_route(target.url), admin_port=0, failures=str(file)) as host:
        admin, client = admin_of(host), host.client("done/#")
        with closing(sqlite3.connect(file)) as database:
            database.execute("DROP TABLE runs")
        client.publish("orders/7", b"1")
        name = json.loads(client.message()[1])["id"]
        eventually(lambda: admin.get("/readyz").status == 503)
        assert admin.get("/readyz").json["reasons"] == ["failures cannot be written: no such table: runs"]
        assert admin.get(f"/api/runs/{name}").status == 200


def test_a_run_that_cannot_be_written_keeps_no_other_one_from_it(tmp_path: Path) -> None:
    file = FailureFile(tmp_path / "failures.db", KeptRun)
    for number, message in enumerate(("one", "half a pair \ud800", "two")):
        file.put(str(number), kept(number, message))
    file.close()
    assert [one.run.message for one in loaded(tmp_path / "failures.db")] == ["one", "two"]


def test_a_machine_without_threads_costs_no_run_and_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    path = tmp_path / "failures.db"
    with closing(FailureFile(path, KeptRun)) as file:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", no_thread)
            file.put("1", kept(1))
        assert file.trouble == "can't start new thread"
        file.put("2", kept(2))
        eventually(lambda: file.trouble is None)
    assert [run.run.id for run in loaded(path)] == ["1", "2"]


def test_what_is_dropped_before_it_was_written_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_file, "_AGAIN_SECONDS", 0.05)
    path = tmp_path / "failures.db"
    file = FailureFile(path, KeptRun)
    run = kept(1)
    file.put("written", run)
    eventually(lambda: _rows(path) == ["written"])
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        for number in range(1000):
            file.put(str(number), run)
            if number == 500:
                eventually(lambda: file.trouble is not None)
            if number > 0:
                file.put(str(number - 1), None)
        file.put("written", None)
        assert file.waiting <= 503  # those that were dropped while a write was tried, until it failed
        other.rollback()
    eventually(lambda: file.waiting == 0)
    file.close()
    assert _rows(path) == ["999"]


def test_a_file_that_is_removed_or_emptied_while_it_is_used_is_made_again_with_all_that_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "failures.db"
    with closing(FailureFile(path, KeptRun)) as file:
        for number in range(3):
            file.put(str(number), kept(number))
            names = [str(one) for one in range(number + 1)]
            eventually(lambda names=names: _rows(path) == names)  # type: ignore[misc]
            eventually(lambda: not _is_connected(path), "the file is not closed after a write")
            if number == 2:
                os.truncate(path, 0)
            else:
                path.unlink()
        file.put("0", None)
        file.put("3", kept(3))
        eventually(lambda: _rows(path) == ["1", "2", "3"])
        assert path.stat().st_mode & 0o077 == 0
    assert [one.run.id for one in loaded(path)] == ["1", "2", "3"]


def test_a_second_broker_is_refused_and_says_so(target: Recorder, tmp_path: Path) -> None:
    path = tmp_path / "failures.db"
    said = r"failures\.db \(failures\) is used by another broker; give each its own"
    with closing(FailureFile(path, KeptRun)), pytest.raises(ConfigurationError, match=said):
        FailureFile(path, KeptRun)
    with hosting(client_route(target.url), failures=str(path)):
        broker = BrokerProcess(tmp_path, client_route(target.url), failures=str(path))
        with closing(broker), pytest.raises(AssertionError, match=said):  # it has ended
            broker.start()
    assert loaded(path) == []


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.long, id="each"), pytest.param(13, id="some")])
def test_a_kill_between_any_two_lines_leaves_a_file_that_opens_with_whole_runs(tmp_path: Path, step: int) -> None:
    """Runs 0 and 1 were there; 2 and 3 come, and 0 goes. Each write is whole or was not made."""
    context, line = multiprocessing.get_context("fork"), 0
    while True:
        line += step
        path = tmp_path / str(line)
        with closing(FailureFile(path, KeptRun)) as file:
            for number in (0, 1):
                file.put(str(number), kept(number))
        writer = context.Process(target=_write_until, args=(path, line))
        writer.start()
        writer.join(SECONDS)
        names = [one.run.id for one in loaded(path)]
        assert names in (["0", "1"], ["0", "1", "2"], ["0", "1", "2", "3"], ["1", "2", "3"]), line
        assert all(one.payload == b"payload" for one in loaded(path))
        if writer.exitcode == 0:
            assert names == ["1", "2", "3"]
            break
        assert writer.exitcode == -signal.SIGKILL
    assert line > 80


def _write_until(path: Path, line: int) -> None:
    """Write in a process that is killed before a line of the module is executed, counted over all threads."""
    lines, module = itertools.count(1), failure_file.__file__

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename != module:
            return None
        if event == "line" and next(lines) == line:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    threading.settrace(trace)
    sys.settrace(trace)
    file = FailureFile(path, KeptRun)
    for name, run in (("2", kept(2)), ("3", kept(3)), ("0", None)):
        file.put(name, run)
        eventually(lambda: not file.waiting)
    file.close()
    os._exit(0)


def _is_connected(path: Path) -> bool:
    """Return whether this process has a database open: what it writes goes into the file that had the name then."""
    return f"{path}-shm" in Path("/proc/self/maps").read_text()


def _rows(path: Path) -> list[str]:
    """Return the ids in a file, none where it is not there."""
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        return [name for (name,) in database.execute("SELECT id FROM runs")]
    return []

"""The file in which failures survive a restart: what is wrong with it is said, and costs nothing else."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.link.admin_frames import Record
from amqtt_rest_bridge.records.kept_file import FailureFile
from amqtt_rest_bridge.records.kept_runs import KeptRun
from tests.benchmarks.mqtt_wire import Wire, publish_packet
from tests.support.admin_client import (
    TOKEN,
    Admin,
    admin_of,
    admin_with_token,
    client_route,
    post,
    refusing_with_reason,
    runs,
)
from tests.support.broker_process import BrokerProcess
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder
from tests.support.ports import steady_port
from tests.support.waiting import eventually


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


def test_a_file_that_is_none_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "failures.db"
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(ConfigurationError, match=r"failures\.db \(failures\): file is not a database; move it away"):
        FailureFile(file)
    with pytest.raises(ConfigurationError, match="name a file that can be written"):
        FailureFile(tmp_path)
    with closing(sqlite3.connect(tmp_path / "newer.db")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigurationError, match="of a newer version of the bridge"):
        FailureFile(tmp_path / "newer.db")


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
    file = FailureFile(tmp_path / "failures.db")
    for number, message in enumerate(("one", "half a pair \ud800", "two")):
        record = Record(float(number), "call", str(number), "R", "E", "in", code="http_status", message=message)
        file.put(str(number), KeptRun(record, "in", 0.0, b"payload", None))
    file.close()
    loaded = FailureFile(tmp_path / "failures.db").loaded
    assert [one.record.message for one in loaded] == ["one", "two"]


def test_what_is_kept_while_the_disk_is_full_is_written_once_there_is_room(tmp_path: Path) -> None:
    path = tmp_path / "failures.db"
    file = FailureFile(path)
    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")  # as unwritable as a full disk
        record = Record(0.0, "call", "1", "R", "E", "in", code="http_status")
        file.put("1", KeptRun(record, "in", 0.0, b"payload", None))
        eventually(lambda: file.trouble is not None)
        other.rollback()
    eventually(lambda: file.trouble is None)
    file.close()
    assert [one.record.id for one in FailureFile(path).loaded] == ["1"]


def test_failures_survive_a_killed_broker(target: Recorder, tmp_path: Path) -> None:
    target.answer = refusing_with_reason
    path, port = tmp_path / "failures.db", steady_port()
    broker = BrokerProcess(tmp_path, client_route(target.url), admin_port=port, failures=str(path))
    with closing(broker), closing(sqlite3.connect(path)) as file:
        broker.start()
        with closing(Wire(broker.port, "publisher").sock) as wire:
            wire.sendall(publish_packet("orders/7", b"bad", 1))
            admin = Admin(port)
            eventually(lambda: len(runs(admin)) == 1)
        (before,) = runs(admin)
        eventually(lambda: file.execute("SELECT count(*) FROM runs").fetchone() == (1,))
        broker.kill()
        broker.start()
        eventually(lambda: admin.get("/healthz").status == 200)
        after = admin.get(f"/api/runs/{before['id']}").json
        assert (after["message"]["payload"], after["response"]["status"]) == ("bad", 422)


def test_a_row_that_is_none_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    file = tmp_path / "failures.db"
    FailureFile(file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("INSERT INTO runs VALUES ('1', 'text')")
    with pytest.raises(ConfigurationError, match=r"failures\.db \(failures\): .*; move it away"):
        FailureFile(file)


def test_what_is_dropped_before_it_was_written_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "failures.db"
    file = FailureFile(path)
    run = KeptRun(Record(0.0, "call", "1", "R", "E", "in", code="http_status"), "in", 0.0, b"payload", None)
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


def _rows(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as database:
        return [name for (name,) in database.execute("SELECT id FROM runs")]

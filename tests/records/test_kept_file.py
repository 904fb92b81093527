"""The file in which failures survive a restart: what is wrong with it is said, and costs nothing else."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from amqtt_rest_bridge.records.kept_file import FailureFile
from tests.support.admin_client import TOKEN, admin_of, admin_with_token, client_route, post, refusing_with_reason
from tests.support.embedded_broker import hosting
from tests.support.http_recorder import Recorder, recording
from tests.support.waiting import eventually


@pytest.fixture
def target() -> Iterator[Recorder]:
    with recording() as recorder:
        yield recorder


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

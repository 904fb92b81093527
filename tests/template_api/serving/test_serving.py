"""`template-api serve` as a process: stop, freshness, several processes, settings, what it cannot start with."""

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from template_api.cli import main
from template_api.library import Pace, set_status
from template_api.records import Status
from tests.support.forked import TEMPLATE_API, ForkedApi, run
from tests.support.library_store import Store, template
from tests.support.served_api import Served
from tests.support.waiting import eventually
from tests.template_api.library.imports import write_lines

Serve = Callable[..., AbstractContextManager[Served]]


def test_the_access_log_has_one_line_of_json_for_each_request(serve: Serve, sqlite_url: str, tmp_path: Path) -> None:
    with serve("--database-url", sqlite_url, "--access-log", "access.log") as api:
        api.get("/api/search?q=webhook", {"X-Request-ID": "mine"})
        api.get("/api/templates/%0a%22,%22status%22:200")
    lines = [json.loads(line) for line in tmp_path.joinpath("access.log").read_text().splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("GET", "/api/search", 200),
        ("GET", '/api/templates/\n","status":200', 404),
    ]
    assert lines[0]["request_id"] == "mine"
    assert lines[0]["query"] == "q=webhook"
    assert lines[0]["client"] == "127.0.0.1"
    assert lines[0]["bytes"] == len(b'{"results":[]}')
    assert lines[0]["milliseconds"] > 0
    assert lines[0]["time"].endswith("Z")


def test_an_access_log_that_was_moved_away_is_made_again(serve: Serve, sqlite_url: str, tmp_path: Path) -> None:
    with serve("--database-url", sqlite_url, "--access-log", "access.log") as api:
        api.get("/api/facets")
        tmp_path.joinpath("access.log").rename(tmp_path / "access.log.1")
        api.get("/api/facets")
        eventually(tmp_path.joinpath("access.log").exists)
    assert [len(tmp_path.joinpath(name).read_text().splitlines()) for name in ("access.log.1", "access.log")] == [1, 1]


def test_an_access_log_on_a_full_disk_harms_nothing(serve: Serve, sqlite_url: str) -> None:
    with serve("--database-url", sqlite_url, "--access-log", "/dev/full") as api:
        assert [api.get("/api/facets").status for _ in range(3)] == [200, 200, 200]
        api.process.send_signal(signal.SIGTERM)
        assert api.process.wait(10) == 0
        eventually(lambda: "template API stopped" in api.log.read_text())
        assert "Traceback" not in api.log.read_text()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_gracefully(serve: Serve, sqlite_url: str, ending: signal.Signals) -> None:
    with (
        serve("--database-url", sqlite_url) as served,
        socket.create_connection(("127.0.0.1", served.port), timeout=60) as idle,
    ):
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        served.process.send_signal(ending)
        assert served.process.wait(10) == 0
        assert idle.recv(1000) in {b"", b'{"status":"ok"}'}
        eventually(lambda: "template API stopped" in served.log.read_text())
        assert "Traceback" not in served.log.read_text()


def test_a_change_by_another_process_is_seen_by_itself(serve: Serve, sqlite_store: Store) -> None:
    assert Pace().follow < 2
    with serve("--database-url", sqlite_store.url) as served:
        sqlite_store.bring(template("two", title="Poll the weather"))
        while not served.get("/api/search?q=weather").json["results"]:
            pass
        held = {"If-None-Match": served.get("/api/templates/two").headers["etag"]}
        assert served.get("/api/templates/two", held).status == 304
        set_status(sqlite_store.url, "two", Status.HIDDEN)
        while served.get("/api/search?q=weather").json["results"]:
            pass
        assert served.get("/api/templates/two", held).status == 404
        assert "weather" not in served.get("/api/suggest?q=we").text


def test_several_processes_answer_the_same_from_one_database(store: Store, serve: Serve) -> None:
    store.bring(template("one", title="Receive a webhook", published_at="2026-01-01"))
    base = ("--base-url", "https://library.example")
    with serve("--database-url", store.url, *base) as first, serve("--database-url", store.url, *base) as second:
        for path in ("/api/templates", "/api/search?q=webhook", "/api/templates/one"):
            answers = [served.get(path) for served in (first, second)]
            assert answers[0].body == answers[1].body
            assert answers[0].headers["etag"] == answers[1].headers["etag"]


def test_settings_come_from_the_environment_and_options_win(tmp_path: Path, serve: Serve) -> None:
    library = write_lines(tmp_path / "library.jsonl", template(), {"slug": "bad"})
    environment = {
        "TEMPLATE_API_DATABASE_URL": f"sqlite:///{tmp_path / 'environment.db'}",
        "TEMPLATE_API_LIBRARY": str(library),
        "TEMPLATE_API_BASE_URL": "https://not.example",
        "TEMPLATE_API_HOST": "127.0.0.1",
        "TEMPLATE_API_PORT": "1",
    }
    with serve("--base-url", "https://library.example/sub/", environment=environment) as served:
        [found] = served.get("/api/templates").json["results"]
        assert found["url"] == "https://library.example/sub/templates/one"
        assert "library.jsonl:2: title is required" in served.log.read_text()
        assert "1 added, 0 changed, 0 unchanged, 1 failed" in served.log.read_text()
    assert tmp_path.joinpath("environment.db").exists()


def test_a_library_is_imported_into_an_empty_database_only(sqlite_store: Store, tmp_path: Path, serve: Serve) -> None:
    sqlite_store.bring(template("there", status="draft"))
    library = write_lines(tmp_path / "library.jsonl", template("other"))
    with serve("--database-url", sqlite_store.url, "--library", str(library)) as served:
        assert served.get("/api/templates").json == {"results": []}


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        pytest.param(["--base-url", "ftp://x"], 2, "base_url must be an address", id="base_url"),
        pytest.param(["--base-url", "http://[x"], 2, "base_url must be an address", id="base_url brackets"),
        pytest.param(["--host", ""], 2, "host must not be empty", id="blank host"),
        pytest.param(["--database-url", " "], 2, "database_url must not be empty", id="blank database_url"),
        pytest.param(["--database-url", "nonsense"], 1, "is not a database URL", id="database_url"),
        pytest.param(["--database-url", "sqlite://"], 1, "names no file", id="database in memory"),
        pytest.param(
            ["--database-url", "sqlite:////no/such/x.db"], 1, "/no/such/x.db is not a file in a folder", id="folder"
        ),
        pytest.param(["--database-url", "sqlite:////usr"], 1, "/usr is not a file in a folder", id="a folder"),
        pytest.param(["--database-url", "mysql://u:p@h/d"], 1, "mysql is not supported", id="another database"),
        pytest.param(["--database-url", "postgresql+nodriver://h/d"], 1, "is not supported", id="unknown driver"),
        pytest.param(["--library", "/no/such"], 1, "/no/such: there is no such file or folder", id="library"),
        pytest.param(["--host", "203.0.113.7"], 1, "cannot listen on 203.0.113.7 port 0", id="foreign address"),
        pytest.param(["--host", "no such host"], 1, "cannot listen on no such host port 0: Name or", id="no address"),
        pytest.param(["--access-log", "/no/such/log"], 2, "--access-log /no/such/log: cannot be written", id="log"),
    ],
)
def test_what_cannot_start_ends_with_one_line_and_a_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    arguments: list[str],
    status: int,
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", "--port", "0", *arguments]) == status
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("template-api: ")
    assert told in line


def test_a_taken_port_ends_with_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(TEMPLATE_API, ["serve", "--port", str(port)], tmp_path)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"template-api: cannot listen on 127.0.0.1 port {port}: Address already in use; "
        f"set port to another port, or end the program that has it: ss -ltnp 'sport = :{port}'\n"
    )


def test_the_api_listens_on_ipv6_too(sqlite_url: str, serve: Serve) -> None:
    with serve("--host", "::1", "--database-url", sqlite_url) as served:
        with socket.create_connection(("::1", served.port), timeout=60) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert b'{"status":"ok"}' in connection.recv(65536) + connection.recv(65536)
        assert f"public address http://[::1]:{served.port}" in served.log.read_text()


def test_a_process_that_is_run_by_another_ignores_signals_and_ends_with_its_link(
    sqlite_url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = socket.socketpair()
    listening = socket.create_server(("127.0.0.1", 0))
    fds = (listening.fileno(), theirs.fileno())
    arguments = ["serve", "--database-url", sqlite_url, "--socket-fd", str(fds[0]), "--link-fd", str(fds[1])]
    with ours, theirs, listening:
        process = ForkedApi("template_api", arguments, fds, {})
        theirs.close()
        assert ours.recv(100) == b"ready\n"
        for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(process.pid, ignored)
        with socket.create_connection(listening.getsockname(), timeout=60) as connection:
            connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.0 200")
        ours.close()
        assert process.wait(20) == 0
    assert "Traceback" not in capfd.readouterr().err

"""The API as a child process: what its parent learns of it, and what it does when the child ends."""

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from amqtt_rest_bridge.times import Backoff
from template_api.config import Settings
from template_api.errors import StartError
from template_api.library import listed_templates
from template_api.library.database import is_missing
from template_api.serving import supervisor as supervisor_module
from template_api.serving.supervisor import Supervisor
from tests.support.forked import ForkedApi
from tests.support.library_store import template
from tests.support.waiting import eventually
from tests.template_api.library.imports import write_lines


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound


def environment(url: str) -> dict[str, str]:
    return Settings(database_url=url).environment("http://127.0.0.1")


class Started(logging.Handler):
    """Notices when the supervisor writes a certain line."""

    def __init__(self, line: str) -> None:
        super().__init__()
        self._line = line
        self.seen = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self._line in record.getMessage():
            self.seen.set()


@pytest.fixture
def failed_again() -> Iterator[Started]:
    handler = Started("cannot start again")
    supervisor_module.log.addHandler(handler)
    yield handler
    supervisor_module.log.removeHandler(handler)


def answers(listening: socket.socket) -> bool:
    with socket.create_connection(listening.getsockname(), timeout=120) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        return connection.recv(100).startswith(b"HTTP/1.0 200")


@pytest.mark.usefixtures("forked")
def test_a_child_that_cannot_start_tells_why_and_only_once(
    listening: socket.socket, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(StartError, match="is not a database URL"):
        Supervisor(listening, environment("nonsense")).start()
    assert capfd.readouterr().err == ""


def test_a_child_that_ends_without_a_message_is_reported_with_its_status(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StartError, match="ended with status 1"):
        Supervisor(listening, environment("sqlite:///x.db")).start()


@pytest.mark.usefixtures("forked")
def test_a_child_is_started_again_until_it_can(listening: socket.socket, tmp_path: Path, failed_again: Started) -> None:
    folder = tmp_path / "database"
    folder.mkdir()
    supervisor = Supervisor(listening, environment(f"sqlite:///{folder}/library.db"), backoff=Backoff(0.0))
    supervisor.start()
    try:
        assert supervisor.process is not None
        first = supervisor.process.pid
        folder.rename(tmp_path / "away")
        os.kill(first, signal.SIGKILL)
        assert failed_again.seen.wait(120)
        tmp_path.joinpath("away").rename(folder)
        assert answers(listening)
        assert supervisor.process.pid != first
    finally:
        supervisor.stop()


@pytest.mark.usefixtures("forked")
def test_a_stop_during_the_pause_before_a_start_ends_at_once(listening: socket.socket, sqlite_url: str) -> None:
    ended = Started("is started again")
    supervisor_module.log.addHandler(ended)
    supervisor = Supervisor(listening, environment(sqlite_url), backoff=Backoff(3600.0, 3600.0))
    supervisor.start()
    assert supervisor.process is not None
    os.kill(supervisor.process.pid, signal.SIGKILL)
    assert ended.seen.wait(120)
    supervisor.stop()
    supervisor_module.log.removeHandler(ended)
    assert listening.fileno() == -1


def test_an_import_ends_with_the_process_that_asked_for_it(tmp_path: Path, sqlite_url: str) -> None:
    file = write_lines(tmp_path / "library.jsonl", *(template(f"t{number}") for number in range(2_000)))
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as bound:
        fds = (bound.fileno(), theirs.fileno())
        arguments = ["serve", "--socket-fd", str(fds[0]), "--link-fd", str(fds[1])]
        settings = Settings(database_url=sqlite_url, library=str(file)).environment("http://127.0.0.1")
        child = ForkedApi("template_api", arguments, fds, settings)
        theirs.close()
        eventually(lambda: not is_missing(sqlite_url) and list(listed_templates(sqlite_url)))
        ours.close()
        assert child.wait(120) == -signal.SIGUSR1
    assert 0 < len(list(listed_templates(sqlite_url))) < 2_000


def test_a_child_that_does_not_stop_is_killed(
    listening: socket.socket, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = Supervisor(listening, environment(sqlite_url), stop_seconds=0.1)
    supervisor.start()
    assert supervisor.process is not None
    os.kill(supervisor.process.pid, signal.SIGSTOP)
    supervisor.stop()
    assert "did not stop within 0.1 s and is killed" in caplog.text

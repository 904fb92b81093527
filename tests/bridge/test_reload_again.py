"""Reloads that fail for a reason that may pass are tried again; those that fail for a fault in the files are not."""

import errno
import itertools
import logging
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from amqtt_rest_bridge.errors import ConfigurationError
from tests.bridge.reloading import Reloading, loaded_before, server_route, watched
from tests.support.commands import Workplace
from tests.support.waiting import eventually

WARNED = """DEFINE ROUTE Idle WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "false"
"""


def test_a_port_that_is_taken_is_tried_until_it_is_free(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Reloading(tmp_path, server_route("/a")) as running:
        with socket.create_server(("127.0.0.1", 0)) as taken, caplog.at_level(logging.WARNING):
            port = taken.getsockname()[1]
            running.write("a.lot", server_route("/b", port=port) + WARNED)
            for _ in range(3):
                running.await_try()
            assert running.post("/a") == 200
            said = [record.getMessage() for record in caplog.records]
            assert sum(f"port {port} (SERVER_PORT)" in line for line in said) == 1
            assert sum("does nothing" in line for line in said) == 1
        eventually(lambda: list(running.host.plugin.server_ports) == [port], "not tried again")
        running.await_status("/b", 200)
        assert caplog.text.count("reload failed, keeping the current routes") == 1


def looks_before_tries(log: Sequence[str | list[str]]) -> list[int]:
    """Return for each try how many looks came before it."""
    return [part.count("look") for part in " ".join(map(str, log)).split("try")[:-1]]


FAILURES = [
    pytest.param(OSError(errno.EMFILE, "Too many open files"), id="descriptors"),
    pytest.param(ConfigurationError("cannot read a.lot: Permission denied"), id="unreadable file"),
    pytest.param(ZeroDivisionError(), id="anything unexpected"),
]


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failure_that_may_pass_is_tried_again_less_and_less_often_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    def fail() -> None:
        raise failure

    before = loaded_before(tmp_path)
    (tmp_path / "a.lot").write_text(server_route("/a"))
    log = watched(tmp_path, monkeypatch, 52, before, reading=fail)
    assert looks_before_tries(log) == [1, 1, 2, 4, 8, 16, 16]
    assert caplog.text.count("reload failed, keeping the current routes") == 1


def test_a_change_of_the_files_is_tried_at_once_and_a_new_reason_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = itertools.count(1)

    def fail() -> None:
        number = next(tries)
        if number == 5:
            (tmp_path / "a.lot").write_text(server_route("/changed"))
        raise ConfigurationError("late" if number > 5 else "early")

    before = loaded_before(tmp_path)
    (tmp_path / "a.lot").write_text(server_route("/a"))
    log = watched(tmp_path, monkeypatch, 22, before, reading=fail)
    assert looks_before_tries(log) == [1, 1, 2, 4, 8, 1, 1, 2]
    assert (caplog.text.count("early"), caplog.text.count("late")) == (1, 1)


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_sighup_ends_no_broker_before_it_is_ready_nor_after_it_has_closed(tmp_path: Path, loop: str) -> None:
    place = Workplace(tmp_path)
    if loop == "asyncio":
        place.write("uvloop.py", "raise ImportError('not here')")
    place.add_plugin(
        "    import atexit\n"
        "    os.kill(os.getpid(), 1)\n"
        "    atexit.register(os.kill, os.getpid(), 1)\n\n"
        "    def __init__(self, context):\n        super().__init__(context)\n        os.kill(os.getpid(), 1)\n"
        "    async def on_broker_pre_start(self):\n        os.kill(os.getpid(), 1)\n"
        "    async def close(self):\n        os.kill(os.getpid(), 1)\n"
    )
    with place.serving() as running:
        assert running.port
        running.send(signal.SIGHUP)
        running.line("routes reloaded: 1 route(s); no changes")
        running.send(signal.SIGTERM)
        assert running.end() == 0

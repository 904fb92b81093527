"""Child processes of our own code: what they get, how they end, when they are started again."""

import socket
from pathlib import Path

import pytest

from amqtt_rest_bridge.child_process import ChildProcess, Restarts
from amqtt_rest_bridge.times import Backoff


def test_what_ran_for_a_minute_has_recovered() -> None:
    now = 0.0
    restarts = Restarts(Backoff(at_once=True), lambda: now)
    delays = []
    for ran in (5.0, 5.0, 5.0, 59.9, 60.0, 0.0):
        restarts.begin()
        now += ran
        delays.append(restarts.ended())
    assert delays == [0, 1, 2, 4, 0, 1]


PROGRAM = """
import os, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
sock.sendall(f"{os.environ['COLOUR']} {sys.stdin.read()!r}".encode())
sock.recv(1)
if sys.argv[2] == "stay":
    sock.detach()
    while True:
        pass
"""


@pytest.mark.parametrize(("manner", "status"), [("leave", 0), ("stay", -9)])
def test_a_child_ends_with_its_socket_and_is_killed_otherwise(
    manner: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a_child.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "socket.py").write_text("raise SystemExit('from the working directory')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = ChildProcess("a_child", [str(theirs.fileno()), manner], [theirs.fileno()], {"COLOUR": "red"})
        theirs.close()
        assert ours.recv(100) == b"red ''"
        ours.close()
        assert child.end(60.0 if manner == "leave" else 0.1) == status
    assert (f"the process with pid {child.pid} did not stop within 0.1 s and is killed" in caplog.text) == bool(status)
    assert child.wait() == status

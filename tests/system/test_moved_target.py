"""A target whose name gets another address, as the system resolves it: `/etc/hosts` of the broker's own mounts."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.test_full_disk import CAN_MOUNT, UNSHARE
from tests.support.asking import ask
from tests.support.commands import CONFIGURATION, Running
from tests.support.http_target import Peer, Target, reply
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(not CAN_MOUNT, reason="mounting a file is not permitted here")

ROUTES = """DEFINE ROUTE In WITH TYPE REST_API
    ADD REST_API_CONFIG WITH ENABLE_SERVER "true" WITH SERVER_PORT '0'
    ADD EVENT E WITH METHOD "POST" WITH ENDPOINT "/in" WITH DESTINATION_TOPIC "in"
DEFINE ROUTE Out WITH TYPE REST_API
    ADD REST_API_CONFIG
        WITH BASE_ADDRESS "http://moved.test:{port}" WITH ENABLE_CLIENT "true" WITH REQUEST_TIMEOUT '1'
    ADD EVENT E
        WITH SOURCE_TOPIC "in" WITH METHOD "POST" WITH ENDPOINT "/x" WITH BODY "{{payload}}"
"""


class Moving:
    """A broker whose route calls `moved.test`: `old` and `new` are what listens at its addresses before and after."""

    def __init__(self, folder: Path) -> None:
        self.is_silent = threading.Event()
        self.old = Target(self._answer, host="127.0.0.2")
        self.new = Target(self._answer, host="127.0.0.3", port=self.old.port)
        self._hosts = folder / "hosts"
        self._resolve_to("127.0.0.2")
        (folder / "broker.yaml").write_text(CONFIGURATION)
        (folder / "routes.lot").write_text(ROUTES.format(port=self.old.port))
        mount = [*UNSHARE, "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', str(self._hosts)]
        serve = [sys.executable, "-m", "amqtt_rest_bridge", "serve", "-c", "broker.yaml"]
        self.broker = Running(subprocess.Popen([*mount, *serve], cwd=folder, stderr=subprocess.PIPE, text=True))

    def send(self, payload: bytes) -> None:
        assert ask(self._port, "/in", payload).status == 200

    @property
    def bodies(self) -> tuple[list[bytes], list[bytes]]:
        """Return what the old and the new address have got."""
        old, new = ([seen.body for seen in one.requests] for one in (self.old, self.new))
        return old, new

    def start(self) -> None:
        self._port = int(self.broker.line("server mode listens on ").rpartition(":")[2])
        assert self.broker.port

    def move(self) -> None:
        """Change the address of the name to the new one."""
        self._resolve_to("127.0.0.3")

    def _resolve_to(self, address: str) -> None:
        self._hosts.write_text(f"127.0.0.1 localhost\n{address} moved.test\n")  # in place: the file is mounted

    def _answer(self, peer: Peer) -> None:
        while peer.request() is not None:
            if peer.server is self.old and self.is_silent.is_set():
                peer.wait()
                return
            peer.send(reply())


@pytest.fixture
def moving(tmp_path: Path) -> Iterator[Moving]:
    made = Moving(tmp_path)
    try:
        with made.old, made.new:
            made.start()
            yield made
    finally:
        made.broker.kill()


def test_a_name_is_resolved_again_once_the_kept_connection_to_its_old_address_is_gone(moving: Moving) -> None:
    moving.send(b"before")
    eventually(lambda: moving.bodies == ([b"before"], []))
    moving.move()
    moving.old.close()
    moving.send(b"after")
    eventually(lambda: moving.bodies == ([b"before"], [b"after"]))


def test_a_name_is_resolved_again_after_its_old_address_has_gone_silent(moving: Moving) -> None:
    moving.send(b"before")
    eventually(lambda: moving.bodies == ([b"before"], []))
    moving.move()
    moving.is_silent.set()
    moving.send(b"unanswered")
    moving.broker.line(" timeout on in after 1 try")
    moving.send(b"after")
    eventually(lambda: moving.bodies == ([b"before", b"unanswered"], [b"after"]))

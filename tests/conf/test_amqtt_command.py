"""`amqtt -c conf/broker.yaml`: the shipped configuration run by amqtt's own command, without `rest-bridge serve`."""

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.support.forked import AMQTT, run

CONF: Final = Path(__file__).parents[2] / "conf"
SECONDS: Final = 60


def arguments(folder: Path, api_port: int) -> list[str]:
    """Return those of the command for the shipped files, with the API on a given port and all else on free ones."""
    shutil.copytree(CONF, folder / "conf")
    broker, demo = folder / "conf/broker.yaml", folder / "conf/routes/demo.lot"
    text = broker.read_text().replace("127.0.0.1:1883", "127.0.0.1:0")
    broker.write_text(text.replace("# port: 8000", f"port: {api_port}"))
    demo.write_text(demo.read_text().replace("'8080'", "'0'"))
    return ["-c", "conf/broker.yaml"]


@contextmanager
def amqtt(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run the command as it is installed."""
    command = [str(Path(sys.executable).with_name("amqtt")), *arguments(folder, 0)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def addresses(running: "subprocess.Popen[str]", *words: str) -> list[str]:
    """Wait for the lines that begin an address with each of these words, in whatever order."""
    assert running.stdout is not None
    found: dict[str, str] = {}
    while len(found) < len(words):
        line = next(running.stdout)
        found |= {one: line.partition(one)[2].partition(",")[0].strip() for one in words if one in line}
    return [found[one] for one in words]


def family(pid: int) -> list[int]:
    """Return descriptors of a process and its children, readable once each has ended."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [os.pidfd_open(each) for each in (pid, *map(int, children))]


def test_it_serves_both_halves_and_sigterm_leaves_no_process_behind(tmp_path: Path) -> None:
    with amqtt(tmp_path) as running:
        server, api = addresses(running, "server mode listens on ", "template API on ")
        hook = urllib.request.Request(f"{server}/webhook", data=b"hello", method="POST")
        for asked in (hook, f"{api}/api/templates"):
            with urllib.request.urlopen(asked, timeout=SECONDS) as response:
                assert response.status == 200
        descriptors = family(running.pid)
        assert len(descriptors) == 3
        running.send_signal(signal.SIGTERM)
        for descriptor in descriptors:
            assert select.select([descriptor], [], [], SECONDS)[0] == [descriptor]
            os.close(descriptor)
        assert running.wait(SECONDS) == -signal.SIGTERM


def test_a_port_of_ours_that_is_taken_ends_it_with_the_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run(AMQTT, arguments(tmp_path, port), tmp_path, timeout=SECONDS)
    assert ended.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in ended.stderr
